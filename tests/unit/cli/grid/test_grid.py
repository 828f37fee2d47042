"""The grid: every action of a prompt in a row, nothing twice, and nothing without all of its blocks."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.cli.errors import CliError
from services.cli.grid.asking import Answered
from services.cli.grid.journal import Journal, labelled
from services.cli.grid.plan import Job, actions_of, interleaved, jobs
from services.cli.grid.recording import Recording
from services.cli.grid.run import WARM_UP_TOKENS, GridRun
from services.cli.grid.system import engine_arguments, experts_of, grid_system
from services.common.config import ConfigModel
from services.common.errors import ConfigError, RequestEndedError
from services.common.expert import DEPTHS, Expert
from services.common.expert_action import PLAIN, Action
from services.common.outcome import Outcome
from services.common.training.prompt import Message
from services.common.workloads.prompt import WorkloadPrompt
from services.router.apex.training.request_table import RequestRow, read_requests, write_requests
from services.scheduler.apex.block_table import BlockRow, BlockTable, read_blocks, write_blocks
from services.scheduler.apex.features import FEATURES
from services.scheduler.experts_config import ExpertsConfig

ACTIONS = actions_of([Expert.PLAIN, Expert.NGRAM, Expert.EAGLE3], [0, 2, 4])


def prompts(count: int, workload: str = "code") -> list[WorkloadPrompt]:
    texts = (f"{workload} {index}" for index in range(count))
    return [WorkloadPrompt.make(workload, "train", "a", [Message("user", text)], 32) for text in texts]


def recorded(request_id: str, emitted: Sequence[int], expert: str = "ngram", depth: int = 4) -> list[BlockRow]:
    features = np.zeros(len(FEATURES), np.float32)
    return [
        BlockRow(request_id, "", "", "train", expert, depth, depth, count - 1, count, index, 1, 5, 0.0, 0.01, features)
        for index, count in enumerate(emitted)
    ]  # fmt: skip


class Replica:
    """Records as one does; ``loses``: the blocks of requests with these actions."""

    def __init__(self, folder: Path, loses: Sequence[Action] = (), fails_at: int | None = None) -> None:
        self._folder, self._loses, self._fails_at = folder, loses, fails_at
        self.asked: list[tuple[str, Action, int]] = []

    async def ask(self, prompt: WorkloadPrompt, tokens: int, action: Action, request_id: str) -> Answered:
        if len(self.asked) == self._fails_at:
            raise RequestEndedError(Outcome.REPLICA_LOST, "gone")
        self.asked.append((prompt.id, action, tokens))
        blocks = (tokens - 1) // 5
        if tokens > 1 and action not in self._loses:
            rows = recorded(request_id, [5] * blocks, action.expert.value, min(action.depth, 3))
            write_blocks(self._folder / f"r-{len(self.asked):06d}.parquet", rows)
        return Answered(0.5, 0.1, tokens, 4 * blocks, 3 * blocks, blocks, 0)


class Listener:
    def step(self, name: str, total: int | None = None) -> None: ...

    def reach(self, done: int, note: str) -> None: ...


async def run(out: Path, replica: Replica, asked: Sequence[Job], recording: Recording) -> GridRun:
    grid = GridRun(replica.ask, recording, Journal(out), 11, Listener(), commit_s=0.0)
    await grid.run(asked, len(asked))
    return grid


def test_actions_are_plain_and_each_expert_at_each_depth() -> None:
    assert [each.name for each in ACTIONS] == ["plain", "ngram-2", "ngram-4", "eagle3-2", "eagle3-4"]
    assert len(actions_of([Expert.PLAIN, Expert.NGRAM], DEPTHS)) == len(DEPTHS)


def test_workloads_take_turns() -> None:
    order = interleaved([prompts(3), prompts(1, "maths")])
    assert [each.workload for each in order] == ["code", "maths", "code", "code"]


def test_a_prompts_actions_follow_one_another_in_an_order_of_its_own() -> None:
    planned = list(jobs(prompts(6), ACTIONS, set(), 1, seed=0))
    assert planned == list(jobs(prompts(6), ACTIONS, set(), 1, seed=0))
    groups = [planned[begin : begin + len(ACTIONS)] for begin in range(0, len(planned), len(ACTIONS))]
    for prompt, group in zip(prompts(6), groups, strict=True):
        assert {job.prompts[0].id for job in group} == {prompt.id}
        assert {job.action for job in group} == set(ACTIONS)
        assert [job.is_first for job in group] == [True, *[False] * 4]
    assert len({tuple(job.action for job in group) for group in groups}) > 1


def test_what_is_done_is_left_out_and_others_are_asked_at_once() -> None:
    three = prompts(3)
    done = {(three[0].id, "plain", 0), *((three[2].id, each.expert.value, each.depth) for each in ACTIONS)}
    planned = list(jobs(three, ACTIONS, done, 2, seed=0))
    by_action = {job.action: [each.id for each in job.prompts] for job in planned}
    assert by_action.pop(PLAIN) == [three[1].id]
    assert set(map(tuple, by_action.values())) == {(three[0].id, three[1].id)}
    assert sum(job.is_first for job in planned) == 1


async def test_a_grid_records_and_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    out, two = tmp_path / "out", prompts(2)
    recording = Recording(tmp_path / "recording")
    failing = Replica(recording.folder, fails_at=4)
    with pytest.raises(RequestEndedError):
        await run(out, failing, list(jobs(two, ACTIONS, set(), 1, 0)), recording)
    first = read_requests(out / "requests.parquet")
    assert len(first) == 3
    assert failing.asked[0][2] == WARM_UP_TOKENS, "the prefix cache is filled first"

    replica = Replica(recording.folder)
    await run(out, replica, list(jobs(two, ACTIONS, Journal(out).done, 1, 0)), Recording(recording.folder))
    rows = read_requests(out / "requests.parquet")
    assert len({row.key for row in rows}) == len(rows) == len(ACTIONS) * 2
    assert rows[:3] == first
    assert not list(jobs(two, ACTIONS, Journal(out).done, 1, 0))
    blocks = read_blocks(out / "blocks")
    assert set(blocks.request_id) == {row.request_id for row in rows}
    assert set(blocks.prompt_id) == {each.id for each in two}
    assert (set(blocks.workload), set(blocks.split)) == ({"code"}, {"train"})
    assert set(zip(blocks.expert, blocks.depth.tolist(), strict=True)) == {
        (each.expert.value, each.depth) for each in ACTIONS
    }


async def test_requests_without_all_their_blocks_are_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = Recording(tmp_path / "recording")
    take = recording.take
    monkeypatch.setattr(recording, "take", lambda rows: take(rows, patience_s=0.0))
    replica = Replica(recording.folder, loses=[ACTIONS[1]])
    grid = await run(tmp_path / "out", replica, list(jobs(prompts(1), ACTIONS, set(), 1, 0)), recording)
    assert grid.lost == 1
    left = list(jobs(prompts(1), ACTIONS, Journal(tmp_path / "out").done, 1, 0))
    assert [job.action for job in left] == [ACTIONS[1]]


async def test_blocks_that_come_late_are_waited_for(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "recording")
    late = row("late", "p")

    async def write() -> None:
        await asyncio.sleep(0.3)
        write_blocks(recording.folder / "a.parquet", recorded("late", [5, 5]))

    (whole, tables), _ = await asyncio.gather(recording.take([late]), write())
    assert whole == [late]
    assert sum(len(table) for table in tables) == 2


def row(request_id: str, prompt_id: str, split: str = "train") -> RequestRow:
    return RequestRow(request_id, prompt_id, "code", split, "ngram", 4, 1, 11, 11, 0.5, 0.1, 8, 6, 2, 0)


def test_blocks_of_an_interrupted_commit_are_removed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.commit([row("a", "p")], BlockTable.of(recorded("a", [5, 5])))
    write_blocks(tmp_path / "blocks" / "blocks-000001.parquet", recorded("b", [5]))
    again = Journal(tmp_path)
    assert again.done == {("p", "ngram", 4)}
    again.commit([row("c", "q", "test")], BlockTable.of(recorded("c", [5, 5])))
    blocks = read_blocks(tmp_path / "blocks")
    assert blocks.request_id.tolist() == ["a", "a", "c", "c"]
    assert blocks.split.tolist() == ["train", "train", "held_out", "held_out"]


def test_blocks_get_the_depth_that_was_asked_for_and_plain_ones_stay_plain() -> None:
    mixed = [*recorded("a", [3], depth=2), *recorded("a", [1], "plain", 0)]
    assert labelled(BlockTable.of(mixed), [row("a", "p")]).depth.tolist() == [4, 0]


def test_tables_of_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "requests.parquet").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"requests\.parquet"):
        Journal(tmp_path)
    write_requests(tmp_path / "requests.parquet", [row("a", "p")])
    assert read_requests(tmp_path / "requests.parquet") == [row("a", "p")]
    assert replace(row("a", "p"), depth=8).key == ("p", "ngram", 8)


def test_the_system_is_one_replica_with_its_experts(tmp_path: Path) -> None:
    experts = experts_of("eagle3", str(tmp_path)) | {"record": str(tmp_path / "r")}
    config = grid_system("m", experts, 16, engine_arguments(["dtype=float32", "max_num_seqs=32"]))
    replica = config["replicas"][0]
    assert isinstance(ExpertsConfig.model_validate(replica["experts"]), ConfigModel)
    assert replica["engine_args"]["dtype"] == "float32"
    assert replica["engine_args"]["max_num_seqs"] == 32
    assert experts_of(None, None) == {}
    with pytest.raises(CliError, match="go together"):
        experts_of("eagle3", None)
    with pytest.raises(CliError, match="NAME=VALUE"):
        engine_arguments(["dtype"])
