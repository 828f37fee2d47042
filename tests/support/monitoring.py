"""The queries of the dashboards and alerts, and which of them find nothing on the pages of a run."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import promql_parser
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"

Series = dict[str, str]
"""Labels, with the metric's name under ``__name__``."""


def dashboards() -> dict[str, dict[str, Any]]:
    """As Grafana imports them, by file name."""
    paths = sorted((FOLDER / "grafana" / "dashboards").glob("*.json"))
    return {path.stem: json.loads(path.read_text()) for path in paths}


def alerts() -> list[dict[str, Any]]:
    """As Prometheus reads them."""
    groups = YAML(typ="safe").load((FOLDER / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> Iterator[tuple[str, str]]:
    """Where each query stands, and its PromQL."""
    for name, dashboard in dashboards().items():
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield f"{name}: {panel['title']}", target["expr"].replace("$__rate_interval", "1m")
    for alert in alerts():
        yield alert["alert"], alert["expr"]


def selectors(query: str) -> list[promql_parser.VectorSelector]:
    """The series that a query selects. Raises ``ValueError`` for what is no PromQL."""
    found: list[promql_parser.VectorSelector] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(promql_parser.parse(query), visit)
    return found


def series_of(targets: Sequence[Mapping[str, Any]]) -> list[Series]:
    """What Prometheus would get from the pages of a ``prometheus-targets.json``."""
    found = []
    for target in targets:
        for address in target["targets"]:
            for family in text_string_to_metric_families(httpx.get(f"http://{address}/metrics", timeout=10).text):
                found += [target["labels"] | each.labels | {"__name__": each.name} for each in family.samples]
    return found


def finds_nothing(query: str, series: Sequence[Series]) -> list[str]:
    """Those of a query's selectors that match none of the series."""
    return [str(selector) for selector in selectors(query) if not any(_matches(selector, each) for each in series)]


def _matches(selector: promql_parser.VectorSelector, series: Series) -> bool:
    operators = promql_parser.MatchOp
    for matcher in selector.matchers.matchers:
        value = series.get(matcher.name, "")
        is_regex = matcher.op in (operators.Re, operators.NotRe)
        fits = re.fullmatch(matcher.value, value) is not None if is_regex else matcher.value == value
        if fits == (matcher.op in (operators.NotEqual, operators.NotRe)):
            return False
    return series["__name__"] == selector.name
