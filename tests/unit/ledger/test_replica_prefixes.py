"""What a replica still has to tell the index of prefixes, while Redis is away."""

from typing import Any

import pytest

from services.common.ledger import LedgerConfig
from services.common.ledger import replica_prefixes as limits
from services.common.ledger.replica_prefixes import ReplicaPrefixes


class Scripts:
    """In the place of a client: notes what is written, or fails."""

    def __init__(self) -> None:
        self.away = False
        self.added: list[str] = []
        self.removed: list[str] = []

    def register_script(self, text: str) -> Any:
        written = self.added if "PEXPIRE" in text.rpartition("local id")[2] else self.removed

        def run(keys: list[str], args: list[Any]) -> None:
            if self.away:
                raise ConnectionError
            written.extend(key.rpartition(":")[2] for key in keys[6:])

        return run


def make(scripts: Scripts, clock: list[float], **changes: Any) -> ReplicaPrefixes:
    config = LedgerConfig.model_validate({"url": "redis://h:1/0", "prefix_blocks": 100, "prefix_life_s": 30} | changes)
    return ReplicaPrefixes(scripts, config, "r0", 1, clock=lambda: clock[0])  # type: ignore[arg-type]


def test_only_what_changed_is_written_and_all_of_it_after_a_loss() -> None:
    scripts = Scripts()
    prefixes = make(scripts, [0.0])
    prefixes.change(["a", "b"], [])
    prefixes.write()
    prefixes.change(["c"], ["a"])
    prefixes.write()
    assert (scripts.added, scripts.removed) == (["a", "b", "c"], ["a"])
    assert not prefixes.is_behind
    prefixes.lost()
    prefixes.write()
    assert scripts.added[3:] == ["b", "c"]


def test_names_are_renewed_three_times_a_life() -> None:
    scripts, clock = Scripts(), [0.0]
    prefixes = make(scripts, clock)
    prefixes.change(["a"], [])
    for clock[0] in range(31):
        prefixes.write()
    assert scripts.added == ["a"] * 4


def test_what_could_not_be_written_follows_and_never_piles_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_TO_REMOVE", 50)
    scripts = Scripts()
    prefixes = make(scripts, [0.0])
    scripts.away = True
    for number in range(1000):
        prefixes.change([str(number)], [])
        with pytest.raises(ConnectionError):
            prefixes.write()
    scripts.away = False
    while prefixes.is_behind:
        prefixes.write()
    assert scripts.added == [str(number) for number in range(900, 1000)]
    assert scripts.removed == [str(number) for number in range(850, 900)]
