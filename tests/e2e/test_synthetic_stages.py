"""Two and four stages with synthetic devices speculate: real scheduling and real hops, and every text is right."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from forerun.scheduler.v1 import service_pb2 as scheduler_pb

from benchmarks.forerun_run import scrape
from services.cli.pipeline_picture import picture_of
from services.common.outcome import Outcome
from services.common.row_kind import RowKind
from services.common.trace_names import SPAN_SPEC_SUMMARY, SPEC_ACCEPTED, SPEC_BLOCKS, SPEC_EMITTED
from services.common.trace_store import read_trace
from services.workers.synthetic_text import reference_answer
from tests.support.free_ports import free_port
from tests.support.scheduler_process import SchedulerProcess
from tests.support.session_client import SessionClient, outcome
from tests.support.stage_servers import StageServers
from tests.support.tiny_model import VOCAB_SIZE, write_tiny_model
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.timeout(300)

ACCEPTANCE, DROPPED = 0.6, 0.25
ANSWER_TOKENS = 60
START_S = 120
BLOCKS = 60
"""So few that a dozen requests preempt one another."""
SYNTHETIC: dict[str, Any] = {
    "synthetic": {
        "step": {"rows": [1, 64], "ms": [4.0, 8.0]},
        "draft": {"rows": [1, 64], "ms": [1.0, 1.0]},
        "acceptance": [ACCEPTANCE],
    },
    "telemetry": {"log_level": "warning"},
}
ENGINE_ARGS = {
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 16,
    "max_model_len": 512,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 64,
    "kv_cache_memory_bytes": 1 << 24,
    "num_gpu_blocks_override": BLOCKS,
}


def write_model(folder: Path, layers: int = 8) -> Path:
    """The tiny model's files with enough layers for four stages; there are no weights, and none are needed."""
    config = write_tiny_model(folder) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_hidden_layers": layers}))
    return folder


class Replicas:
    """A scheduler process over two stages and one over four, of which the latter drops drafts."""

    def __init__(self, folder: Path) -> None:
        self._model = write_model(folder / "model")
        self.traces = folder / "traces"
        self.stages = StageServers([SYNTHETIC] * 6)
        addresses = self.stages.addresses
        self.schedulers = {2: self._spawn(folder, addresses[:2], 0.0), 4: self._spawn(folder, addresses[2:], DROPPED)}
        for scheduler in self.schedulers.values():
            eventually_sync(scheduler.is_serving, START_S)

    def _spawn(self, folder: Path, stages: list[str], drop_fraction: float) -> SchedulerProcess:
        return SchedulerProcess(
            folder,
            replica_id=f"stages-{len(stages)}",
            engine="vllm",
            model=str(self._model),
            server={"metrics_listen": f"127.0.0.1:{free_port()}"},
            engine_metrics_listen=f"127.0.0.1:{free_port()}",
            stages=[[address] for address in stages],
            speculation={"draft_adapter": "none", "mode": "always", "drop_fraction": drop_fraction},
            engine_args=ENGINE_ARGS,
            telemetry={"traces_dir": str(self.traces)},
        ).spawn()

    def counters(self, stages: int, page: str, prefix: str) -> dict[str, float]:
        config = json.loads(self.schedulers[stages].config_text)
        address = config["server"]["metrics_listen"] if page == "front" else config["engine_metrics_listen"]
        return scrape([address], prefix)


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    running = Replicas(tmp_path_factory.mktemp("synthetic"))
    try:
        yield running
        for scheduler in running.schedulers.values():
            scheduler.signal(signal.SIGTERM)
        assert [scheduler.wait(30) for scheduler in running.schedulers.values()] == [0, 0]
        assert running.stages.wait(30) == 0, "stages leave with their schedulers"
    finally:
        for scheduler in running.schedulers.values():
            scheduler.end()
        running.stages.end()


@pytest.mark.parametrize("stages", [2, 4])
async def test_texts_are_right_whatever_is_drafted_dropped_preempted_and_cancelled(
    replicas: Replicas, stages: int
) -> None:
    random = Random(stages)
    # Few different beginnings, so that prefixes are shared; some prompts are prefilled in pieces.
    prompts = [[index % 3] + [5] * random.randrange(20, 150) for index in range(14)]
    sampling = {"temperature": 0.0, "max_tokens": ANSWER_TOKENS, "ignore_eos": True, "detokenize": False}
    trace_id = f"{stages:032x}"
    async with SessionClient(replicas.schedulers[stages].address) as session:
        for index, prompt in enumerate(prompts):
            traceparent = f"00-{trace_id}-{'cd' * 8}-01" if index == 0 else ""
            await session.submit(f"r{index}", prompt, traceparent=traceparent, **sampling)
        cancelled = ("r3", "r7")
        for name in cancelled:
            await session.first_delta(name, 30)
            await session.cancel(name)
        for index, prompt in enumerate(prompts):
            name = f"r{index}"
            expected = Outcome.CANCELLED if name in cancelled else Outcome.LENGTH
            assert outcome(await session.finished(name, 60)) is expected
            said = session.token_ids(name)
            assert said == reference_answer(prompt, ANSWER_TOKENS, VOCAB_SIZE)[: len(said)], name
            assert name in cancelled or len(said) == ANSWER_TOKENS
        replica_info = await session.stub.GetReplicaInfo(scheduler_pb.GetReplicaInfoRequest())
        assert replica_info.free_blocks == replica_info.total_blocks == BLOCKS - 1
        assert replica_info.running_requests == replica_info.waiting_requests == 0
    await asyncio.to_thread(_check_counters, replicas, stages)
    await asyncio.to_thread(_check_picture, replicas, stages, trace_id)


def _check_counters(replicas: Replicas, stages: int) -> None:
    counted = replicas.counters(stages, "core", "forerun_sp_")
    drafted, accepted, flushed, dropped = (
        counted[f"forerun_sp_{name}_tokens_total"] for name in ("drafted", "accepted", "flushed", "dropped")
    )
    assert drafted > 300
    assert accepted / drafted == pytest.approx(ACCEPTANCE, abs=0.1)
    assert flushed >= drafted - accepted
    assert dropped / (drafted + dropped) == pytest.approx(DROPPED if stages == 4 else 0.0, abs=0.1)
    assert replicas.counters(stages, "front", "vllm:num_preemptions")["vllm:num_preemptions_total"] > 0


def _check_picture(replicas: Replicas, stages: int, trace_id: str) -> None:
    """Of the one request that was traced: every stage, misses, and as many tokens as the client got."""
    eventually_sync(lambda: any(span.name == SPAN_SPEC_SUMMARY for span in read_trace(replicas.traces, trace_id)), 10)
    picture = picture_of(read_trace(replicas.traces, trace_id))
    assert [lane.stage for lane in picture.lanes] == list(range(stages))
    kinds = [box.kind for box in picture.lanes[0].boxes]
    assert {RowKind.PREFILL, RowKind.VERIFIED, RowKind.ACCEPTED, RowKind.MISSED} <= set(kinds)
    assert (RowKind.LEFT_OUT in kinds) == (stages == 4)
    assert len(picture.misses) == kinds.count(RowKind.MISSED)
    ahead = [box for box in picture.lanes[0].boxes if box.kind is RowKind.ACCEPTED]
    ends = {box.step: box.ended_ms for box in picture.lanes[-1].boxes}
    assert all(box.began_ms < ends[box.step] for box in ahead)
    speculation = picture.speculation
    assert speculation[SPEC_ACCEPTED] + speculation[SPEC_BLOCKS] >= speculation[SPEC_EMITTED] > ANSWER_TOKENS / 2
    assert 0 < speculation[SPEC_EMITTED] <= ANSWER_TOKENS
