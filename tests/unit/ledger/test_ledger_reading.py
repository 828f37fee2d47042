"""What Redis holds may be anything: what makes no sense is left out, the rest is read."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.common.ledger.reading import parse_reply

FIELDS = {
    "generation": "3",
    "address": "h:1",
    "total": "10",
    "free": "4",
    "held": "6",
    "reserved": "5",
    "forecast_peak": "0",
    "running": "1",
    "waiting": "0",
    "heartbeat": "1000",
}


def flat(fields: dict[str, str]) -> list[str]:
    return [text for pair in fields.items() for text in pair]


def test_reads_a_row() -> None:
    [row] = parse_reply([1500, [["r0", flat(FIELDS), 2, ["a", "6"], ["q", "2500", "3"]]]])
    assert row.replica.heartbeat_age_s == 0.5
    assert row.replica.reserved == 2, "the script leaves out what expired"
    assert row.held_requests == {"a": 6}
    assert [(r.reservation_id, r.blocks, r.expires_in_s) for r in row.reservations] == [("q", 3, 1.0)]


def test_a_senseless_entry_does_not_hide_the_others() -> None:
    rows: list[Any] = [
        ["z", flat(FIELDS), 0, [], []],
        ["gone", [], 0, [], []],
        ["text", flat(FIELDS | {"free": "many"}), 0, [], []],
        ["odd", flat(FIELDS)[:-1], 0, [], []],
        ["poor", ["total", "3"], 0, [], []],
        ["held", flat(FIELDS), 0, ["a", "b"], []],
        ["a", flat(FIELDS), 0, [], []],
    ]
    assert [row.replica.replica_id for row in parse_reply([1500, rows])] == ["a", "z"]


@given(st.dictionaries(st.sampled_from(list(FIELDS)), st.text()))
def test_no_text_in_a_field_raises(fields: dict[str, str]) -> None:
    list(parse_reply([1500, [["r0", flat(FIELDS | fields), 0, [], []]]]))
