"""Recorded blocks: what is known before each one, bounded, and whole on the disk at the end."""

import threading
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from services.common.expert import Expert
from services.scheduler import block_writer
from services.scheduler.apex.block import Block, Choice, Why
from services.scheduler.apex.block_table import read_blocks
from services.scheduler.apex.features import FEATURES
from services.scheduler.apex.fixed_policy import FixedPolicy
from services.scheduler.apex.live_blocks import LiveBlocks, Verified, VerifyingStep, Wish
from services.scheduler.block_writer import BlockWriter, client_id
from services.scheduler.experts_config import ExpertsConfig

STEP = VerifyingStep(1, 5, 0.01)


def block(index: int, features: bool = True) -> Block:
    choice = Choice(Expert.NGRAM, 4, Why.PINNED)
    known = np.full(len(FEATURES), index, np.float32) if features else None
    return Block(index, choice, 4, 2, 3, 1, 5, 0.0, 0.01, known)


def live(record: Path | None) -> LiveBlocks:
    return LiveBlocks(ExpertsConfig(record=record), FixedPolicy(Expert.NGRAM, 4))


def counted(registry: CollectorRegistry, name: str) -> float | None:
    return registry.get_sample_value(f"forerun_block_records_{name}")


def test_features_are_those_before_the_block(tmp_path: Path) -> None:
    blocks = live(tmp_path)
    blocks.begin("a", [1, 2, 3, 4, 1, 2, 3, 4], [1], 32, Wish())
    before = blocks._live["a"].history.features(Expert.NGRAM, 5, 16)
    blocks.choose({"a": 16})
    (first,) = blocks.close({"a": Verified(4, 4, [2, 3, 4, 1, 2])}, STEP).values()
    assert first.features is not None
    assert first.features.tolist() == before.tolist()
    assert dict(zip(FEATURES, first.features, strict=True))["blocks"] == 0
    blocks.choose({"a": 16})
    (second,) = blocks.close({"a": Verified(4, 0, [9])}, STEP).values()
    assert second.features is not None
    known = dict(zip(FEATURES, second.features, strict=True))
    assert (known["last_accepted"], known["last_drafted"], known["last_rejected_at"]) == (4, 4, 0)


def test_requests_that_others_draft_for_have_their_match_on_record(tmp_path: Path) -> None:
    """A free choice would know it; without a record nobody looks."""
    for record, match in ((tmp_path, 5.0), (None, None)):
        blocks = live(record)
        blocks.begin("a", [1, 2, 3, 4, 1, 2, 3, 4], [1], 32, Wish(Expert.PLAIN))
        blocks.choose({"a": 16})
        (plain,) = blocks.close({"a": Verified(0, 0, [2])}, STEP).values()
        assert plain.choice.expert is Expert.PLAIN
        known = None if plain.features is None else plain.features[FEATURES.index("ngram_match")]
        assert known == match


def test_everything_is_written_at_the_end_under_the_clients_ids(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    writer = BlockWriter(tmp_path / "blocks", "replica-0-1", registry)
    for index in range(block_writer.BLOCKS_AT_ONCE + 5):
        writer.put("router-a.1.mine-0123abcd", block(index))
    writer.close()
    table = read_blocks(tmp_path / "blocks")
    assert table.index.tolist() == list(range(block_writer.BLOCKS_AT_ONCE + 5))
    assert table.features[:, 0].tolist() == table.index.tolist()
    assert set(table.request_id) == set(table.prompt_id) == {"mine"}
    assert (set(table.workload), set(table.split)) == ({""}, {"train"})
    assert counted(registry, "total") == len(table)
    assert counted(registry, "dropped_total") == 0
    assert sorted(path.name for path in (tmp_path / "blocks").iterdir()) == [
        "replica-0-1-000000.parquet",
        "replica-0-1-000001.parquet",
    ]


def test_what_finds_no_room_is_counted_and_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, goes_on = threading.Event(), threading.Event()
    write = block_writer.write_blocks

    def slow(path: Path, rows: list[block_writer.BlockRow]) -> None:
        entered.set()
        goes_on.wait(10)
        write(path, rows)

    monkeypatch.setattr(block_writer, "write_blocks", slow)
    monkeypatch.setattr(block_writer, "FLUSH_S", 0.0)
    registry = CollectorRegistry()
    writer = BlockWriter(tmp_path, "a", registry, max_waiting=3)
    writer.put("r", block(0))
    assert entered.wait(5)
    for index in range(1, 10):
        writer.put("r", block(index))
    writer.put("r", block(10, features=False))
    assert counted(registry, "dropped_total") == 7
    goes_on.set()
    writer.close()
    assert read_blocks(tmp_path).index.tolist() == [0, 1, 2, 3]


def test_a_disk_that_fails_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, rows: list[block_writer.BlockRow]) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(block_writer, "write_blocks", full)
    registry = CollectorRegistry()
    writer = BlockWriter(tmp_path, "a", registry)
    writer.put("r", block(0))
    writer.close()
    assert (counted(registry, "total"), counted(registry, "dropped_total")) == (0, 1)


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ("router-a.1.grid-12-eagle3-4-0123abcd", "grid-12-eagle3-4"),
        ("router-a.1.dots.stay-0123abcd-0123abcd", "dots.stay-0123abcd"),
        ("1_router-a.12.one-of-two-0123abcd", "1_one-of-two"),
        ("plain", "plain"),
    ],
)
def test_what_was_put_around_the_clients_id_is_taken_off(inside: str, outside: str) -> None:
    assert client_id(inside) == outside
