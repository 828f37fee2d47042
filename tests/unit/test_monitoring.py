"""Dashboards and alerts are what Grafana and Prometheus can read, and every alert has its page in the runbook."""

import re
from pathlib import Path

import pytest

from services.cli.run_dir import UnitState
from services.cli.scrape_targets import scrape_targets
from services.cli.units import UnitKind
from tests.support.monitoring import alerts, dashboards, finds_nothing, queries, selectors

RUNBOOK = Path(__file__).parents[2] / "docs" / "operations.md"


@pytest.mark.parametrize(("where", "query"), list(queries()))
def test_every_query_is_promql_and_selects_something(where: str, query: str) -> None:
    assert selectors(query), where


def test_panels_say_what_they_show() -> None:
    for dashboard in dashboards().values():
        for panel in dashboard["panels"]:
            assert panel["description"], panel["title"]
            assert [target["refId"] for target in panel["targets"]] == list("ABCDEFGH"[: len(panel["targets"])])


def test_every_alert_has_a_section_in_the_runbook() -> None:
    headings = {re.sub(r"[^a-z0-9-]", "", line.lower()) for line in re.findall(r"^#+ (.+)$", RUNBOOK.read_text(), re.M)}
    for alert in alerts():
        page, _, anchor = alert["annotations"]["runbook"].partition("#")
        assert page == "docs/operations.md"
        assert anchor in headings, alert["alert"]


def test_a_query_that_nothing_answers_is_found() -> None:
    series = [{"__name__": "up", "page": "router"}]
    assert finds_nothing('rate(up{page="router"}[1m])', series) == []
    assert finds_nothing('rate(up{page=~"rou.*", page!="x"}[1m])', series) == []
    assert len(finds_nothing('rate(up{page!="router"}[1m]) / down', series)) == 2


def test_targets_say_whose_page_it_is(tmp_path: Path) -> None:
    unit = UnitState(
        name="replica-0.scheduler", kind=UnitKind.SCHEDULER, replica_id="replica-0", pid=1, address="a:1",
        metrics=(("replica-0.scheduler", "a:2"), ("replica-0.engine-core", "a:3")), log_file=tmp_path,
    )  # fmt: skip
    text = scrape_targets([unit])
    assert '"service": "scheduler"' in text
    assert '"service": "engine-core"' in text
    assert text.count('"replica": "replica-0"') == 2
