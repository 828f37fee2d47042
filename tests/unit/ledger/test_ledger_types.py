"""Pure arithmetic and the entry's changes: what is sent is exactly what differs."""

import math
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.ledger import EngineState, LedgerReplica, ReplicaTotals, forecast_pressure
from services.common.ledger.replica_entry import _changes, _Written
from services.common.ledger.schema import FleetKeys

REPLICA = LedgerReplica("r", 1, "h:1", 100, 50, 30, 20, 0, 1, 0, 0.0)

counts = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 9), max_size=6)


@pytest.mark.parametrize(
    ("held", "reserved", "forecast_peak", "blocks", "pressure"),
    [(30, 20, 0, 0, 0.5), (30, 20, 0, 10, 0.6), (30, 20, 90, 10, 0.9), (90, 20, 95, 10, 1.2)],
)
def test_pressure_is_the_larger_of_books_and_forecast(
    held: int, reserved: int, forecast_peak: int, blocks: int, pressure: float
) -> None:
    replica = replace(REPLICA, held=held, reserved=reserved, forecast_peak=forecast_peak)
    assert forecast_pressure(replica, blocks) == pytest.approx(pressure)


def test_a_replica_without_blocks_is_never_the_better_choice() -> None:
    assert forecast_pressure(replace(REPLICA, total=0), 1) == math.inf


def test_all_keys_of_a_fleet_share_one_hash_tag() -> None:
    keys = FleetKeys("blue").replica("r0").as_list()
    assert len(set(keys)) == len(keys)
    assert all(key.startswith("forerun:{blue}:") for key in keys)


@given(before=counts, after=counts, queued_before=counts, queued=counts, settled=st.sets(st.text("rs", min_size=1)))
def test_changes_turn_the_old_entry_into_the_new_one(
    before: dict[str, int],
    after: dict[str, int],
    queued_before: dict[str, int],
    queued: dict[str, int],
    settled: set[str],
) -> None:
    state = EngineState(ReplicaTotals(9, 9, 0), after, queued)
    changes = _changes(_Written(1, before, queued_before), state, settled | queued_before.keys(), renew=False)
    held = {**before, **changes["held"]}  # type: ignore[dict-item]
    for request in changes["ended"]:  # type: ignore[attr-defined]
        del held[request]
    assert held == after
    assert set(changes["settled"]) == (settled | queued_before.keys()) - queued.keys()  # type: ignore[call-overload]
    assert changes["waiting"] == {key: queued[key] for key in queued.keys() - queued_before.keys()}
    assert _changes(_Written(), state, settled, renew=True)["waiting"] == queued


def test_configuration_and_values_do_not_import_the_redis_client() -> None:
    program = "import sys, services.common.ledger; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
