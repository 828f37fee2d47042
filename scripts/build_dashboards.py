"""Writes Grafana's dashboards from deploy/monitoring/dashboards.yaml: ``make dashboards``; with --check only compares.

Grafana's own SDK knows the format; the YAML says what people care about.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.timeseries import Panel
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef
from ruamel.yaml import YAML

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "monitoring"
DATA_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH, HEIGHT = 12, 8
"""Of a panel; Grafana's page is 24 wide."""


def definitions() -> Mapping[str, Any]:
    """By dashboard: ``title`` and ``panels``, each with ``title``, ``text``, ``unit`` and ``queries`` by legend."""
    return YAML(typ="safe").load((FOLDER / "dashboards.yaml").read_text(encoding="utf-8"))


def build(name: str, definition: Mapping[str, Any]) -> str:
    """The dashboard as Grafana imports it."""
    dashboard = (
        Dashboard(definition["title"])
        .uid(f"forerun-{name}")
        .tags(["forerun"])
        .refresh("10s")
        .time("now-30m", "now")
        .with_variable(DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for panel in definition["panels"]:
        dashboard.with_panel(_panel(panel))
    return JSONEncoder(sort_keys=True, indent=1).encode(dashboard.build()) + "\n"


def _panel(definition: Mapping[str, Any]) -> Panel:
    panel = Panel().title(definition["title"]).description(definition["text"]).unit(definition["unit"])
    panel.datasource(DATA_SOURCE).span(WIDTH).height(HEIGHT).min(0)
    for letter, (legend, query) in zip("ABCDEFGH", definition["queries"].items(), strict=False):
        panel.with_target(Dataquery().ref_id(letter).expr(query).legend_format(legend).datasource(DATA_SOURCE))
    return panel


def main() -> int:
    """Exit code: 1 when ``--check`` finds a file that is not what the YAML gives."""
    check, stale = "--check" in sys.argv[1:], []
    for name, definition in definitions().items():
        path, text = FOLDER / "grafana" / "dashboards" / f"{name}.json", build(name, definition)
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
    for path in stale:
        sys.stderr.write(f"{path} is not what dashboards.yaml gives; run: make dashboards\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
