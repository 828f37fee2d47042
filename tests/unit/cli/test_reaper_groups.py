"""Which groups the reaper kills."""

import pytest

from services.cli import reaper


def test_only_groups_that_were_not_taken_back_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(reaper, "kill_group", killed.append)
    reaper.watch(["+10\n", "+20\n", "-10\n", "+30\n", "-99\n"])
    assert sorted(killed) == [20, 30]


def test_a_group_that_is_gone_is_no_error() -> None:
    # Above the kernel's largest pid.
    reaper.kill_group(2**30)
