"""Where Prometheus finds the pages of what ``forerun up`` runs: a file that its ``file_sd_configs`` read."""

import json
from collections.abc import Iterable

from services.cli.run_dir import UnitState

TARGETS_FILE = "prometheus-targets.json"


def scrape_targets(units: Iterable[UnitState]) -> str:
    """JSON: each page's address, and whose it is.

    Labels: ``page`` (as ``forerun up`` names it, for example replica-0.stage-1), ``service`` (router, scheduler,
    engine-core or stage) and, where it belongs to one, ``replica``.
    """
    targets = []
    for unit in units:
        for page, address in unit.metrics:
            # A unit's own page comes first and has its name; a scheduler's second one is its engine core's.
            service = unit.kind.value if page == unit.name else page.rpartition(".")[2]
            labels = {"page": page, "service": service}
            if unit.replica_id is not None:
                labels["replica"] = unit.replica_id
            targets.append({"targets": [address], "labels": labels})
    return json.dumps(targets, indent=2) + "\n"
