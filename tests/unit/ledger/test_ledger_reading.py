"""What Redis holds may be anything: what makes no sense is left out, the rest is read."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.common.ledger import LedgerRow
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


def entry(replica_id: str, fields: dict[str, str], **details: Any) -> dict[str, Any]:
    return {"id": replica_id, "fields": fields, "reserved": 2, "held": {}, "reservations": {}} | details


def rows(*entries: dict[str, Any]) -> list[LedgerRow]:
    return list(parse_reply(json.dumps({"now_ms": 1500, "replicas": list(entries)})))


def test_reads_a_row() -> None:
    [row] = rows(entry("r0", FIELDS, held={"a": "6"}, reservations=[["q", "2500", "3"]]))
    assert row.replica.heartbeat_age_s == 0.5
    assert row.replica.reserved == 2, "the script leaves out what expired, the hash does not"
    assert row.held_requests == {"a": 6}
    assert [(r.reservation_id, r.blocks, r.expires_in_s) for r in row.reservations] == [("q", 3, 1.0)]


def test_a_fleet_without_replicas_is_an_empty_lua_table() -> None:
    assert list(parse_reply('{"now_ms":1.5e3,"replicas":{}}')) == []


def test_a_senseless_entry_does_not_hide_the_others() -> None:
    read = rows(
        entry("z", FIELDS),
        entry("gone", {}),
        entry("text", FIELDS | {"free": "many"}),
        entry("poor", {"total": "3"}),
        entry("held", FIELDS, held={"a": "b"}),
        entry("a", FIELDS),
    )
    assert [row.replica.replica_id for row in read] == ["a", "z"]


@given(st.dictionaries(st.sampled_from(list(FIELDS)), st.text()))
def test_no_text_in_a_field_raises(fields: dict[str, str]) -> None:
    rows(entry("r0", FIELDS | fields))
