"""The parts of the edges that need no server: keys, request ids, admission, back-off, signals."""

import asyncio
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.errors import ConfigError, RequestEndedError
from services.common.validation import validate_request_id
from services.router.admission import Admission
from services.router.api_keys import ApiKeys, load_api_keys
from services.router.backoff import Backoff
from services.router.change_signal import ChangeSignal
from services.router.request_ids import wire_request_id


@pytest.mark.parametrize(
    ("authorization", "allowed"),
    [
        ("Bearer secret", True),
        ("bearer secret", True),
        ("Bearer other", True),
        ("Bearer  secret", True),
        ("Bearer wrong", False),
        ("Bearer secre", False),
        ("Bearer", False),
        ("Basic secret", False),
        ("secret", False),
        ("", False),
        ("Bearer schlüssel\U0001f511", False),
    ],
)
def test_keys(authorization: str, allowed: bool) -> None:
    assert ApiKeys(["secret", "other"]).allow(authorization) is allowed


def test_a_key_says_whose_it_is() -> None:
    keys = ApiKeys(["first team-a", "second"])
    assert keys.allow("Bearer first")
    assert not keys.allow("Bearer first team-a")
    assert [keys.tenant(f"Bearer {key}") for key in ("first", "second", "wrong")] == ["team-a", "", ""]
    with pytest.raises(ConfigError, match="tenant"):
        load_api_keys(["first team/a"], None)


def test_without_keys_everything_is_open() -> None:
    assert ApiKeys([]).allow("")
    assert not ApiKeys([]).required


def test_a_key_file_adds_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# team a\nfirst\n\n  second  \n")
    keys = load_api_keys(["given"], file)
    assert [keys.allow(f"Bearer {key}") for key in ("given", "first", "second", "# team a", "")] == [True] * 3 + [
        False
    ] * 2


@pytest.mark.parametrize("content", [None, b"", b"# only a comment\n", b"\xff\xfe"])
def test_a_key_file_without_keys_is_a_configuration_error(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match="api_key_file"):
        load_api_keys([], file)


@given(st.text(max_size=200))
def test_any_clients_id_becomes_a_legal_one(asked: str) -> None:
    for is_taken in (lambda _: False, lambda _: True):
        validate_request_id(wire_request_id(asked, is_taken))


def test_a_legal_free_id_stays_and_a_taken_one_differs() -> None:
    assert wire_request_id("cmpl-1", lambda _: False) == "cmpl-1"
    assert re.fullmatch(r"cmpl-1-[0-9a-f]{8}", wire_request_id("cmpl-1", {"cmpl-1"}.__contains__))


async def test_admission_counts_and_tells_when_it_is_idle() -> None:
    admission = Admission(2, 100)
    with admission.slot("a"), admission.slot("b"):
        assert admission.in_flight == 2
        assert admission.holds("a")
        with pytest.raises(RequestEndedError):
            admission.check_room()
        idle = asyncio.create_task(admission.wait_idle())
        await asyncio.sleep(0)
        assert not idle.done()
    await asyncio.wait_for(idle, 1)
    admission.check_room()


def test_backoff_is_bounded_and_starts_over() -> None:
    random.seed(0)
    backoff = Backoff(0.1, 2.0)
    waits = [backoff.next() for _ in range(10)]
    assert 0.05 <= waits[0] <= 0.1
    assert all(1.0 <= wait <= 2.0 for wait in waits[6:])
    backoff.reset()
    assert backoff.next() <= 0.1


async def test_no_change_between_looking_and_waiting_is_missed() -> None:
    signal = ChangeSignal()
    seen = signal.version
    signal.notify()
    await asyncio.wait_for(signal.wait_past(seen), 1)
    waiting = [asyncio.create_task(signal.wait_past(signal.version)) for _ in range(3)]
    await asyncio.sleep(0)
    signal.notify()
    await asyncio.wait_for(asyncio.gather(*waiting), 1)
