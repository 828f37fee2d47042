"""The engine core's connections to its stages, against real gRPC servers in processes that can be killed."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
from forerun.stage.v1 import service_pb2 as pb

from services.scheduler.stage_links import StageLinkOptions, StageLinks, StageLostError
from tests.support.fake_stage import serve_fake_stage

OPTIONS = StageLinkOptions(
    tls=None, allow_plaintext=False, max_message_bytes=2**20, connect_timeout_s=20.0, call_timeout_s=5.0
)


class Stages:
    """Fake stage processes and what the links reported of them."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.processes: list[Any] = []
        addresses = []
        for rank in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve_fake_stage, args=(theirs, rank), daemon=True)
            process.start()
            self.processes.append(process)
            addresses.append(_address(ours))
        self.replies: list[tuple[int, pb.ExecuteResponse]] = []
        self.lost: list[StageLostError] = []
        self.changed = threading.Event()
        self.links = StageLinks(addresses, OPTIONS, self._on_reply, self._on_lost)

    def configure(self) -> list[pb.ConfigureResponse]:
        return self.links.configure([pb.ConfigureRequest(generation=1) for _ in self.processes])

    def wait_for(self, condition: Any, timeout_s: float = 10.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "the links reported nothing"
            self.changed.wait(0.1)
            self.changed.clear()

    def close(self) -> None:
        self.links.close()
        for process in self.processes:
            process.kill()
            process.join()

    def _on_reply(self, rank: int, reply: pb.ExecuteResponse) -> None:
        self.replies.append((rank, reply))
        self.changed.set()

    def _on_lost(self, error: StageLostError) -> None:
        self.lost.append(error)
        self.changed.set()


def _address(connection: Connection) -> str:
    assert connection.poll(30), "the fake stage did not start"
    return f"127.0.0.1:{connection.recv()}"


@pytest.fixture
def stages() -> Iterator[Stages]:
    running = Stages(2)
    yield running
    running.close()


def test_rank_0_chooses_the_rendezvous_of_all(stages: Stages) -> None:
    answers = stages.configure()
    assert [answer.rendezvous_address for answer in answers] == ["127.0.0.1:4242", "127.0.0.1:4242"]


def test_calls_reach_every_rank_and_come_back_in_rank_order(stages: Stages) -> None:
    stages.configure()
    results = stages.links.call([pb.CallWorkerRequest(arguments=b"a"), pb.CallWorkerRequest(arguments=b"b")])
    assert results == [b"0:a", b"1:b"]


def test_plans_arrive_in_order_and_replies_name_their_rank(stages: Stages) -> None:
    stages.configure()
    for step in range(1, 51):
        stages.links.send(pb.ExecuteRequest(step=step))
    stages.wait_for(lambda: len(stages.replies) == 100)
    for rank in (0, 1):
        assert [reply.step for from_rank, reply in stages.replies if from_rank == rank] == list(range(1, 51))


def test_a_killed_stage_is_reported_once_and_at_once(stages: Stages) -> None:
    stages.configure()
    began = time.monotonic()
    os.kill(stages.processes[1].pid, signal.SIGKILL)
    stages.wait_for(lambda: stages.lost)
    assert time.monotonic() - began < 2
    os.kill(stages.processes[0].pid, signal.SIGKILL)
    time.sleep(0.5)
    assert len(stages.lost) == 1
    assert "stage 1 at 127.0.0.1" in str(stages.lost[0])


def test_a_refusal_names_the_stage_and_the_reason(stages: Stages) -> None:
    with pytest.raises(StageLostError, match=r"stage 0 at .*FAILED_PRECONDITION: fingerprint"):
        stages.links.configure([pb.ConfigureRequest(fingerprint="wrong") for _ in range(2)])


def test_a_stage_that_never_answers_a_call_is_given_up(stages: Stages) -> None:
    stages.configure()
    with pytest.raises(StageLostError, match="did not answer within 5 s"):
        stages.links.call([pb.CallWorkerRequest(arguments=b"hang"), pb.CallWorkerRequest()])


def test_close_ends_the_streams_without_reporting_a_loss(stages: Stages) -> None:
    stages.configure()
    stages.links.close()
    stages.links.close()
    for process in stages.processes:
        process.join(5)
        assert process.exitcode == 0, "a stage leaves when its scheduler does"
    assert not stages.lost


def test_a_stage_that_is_still_starting_is_waited_for(free_port: Any) -> None:
    port = free_port()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    links = StageLinks([f"127.0.0.1:{port}"], OPTIONS, lambda rank, reply: None, lambda error: None)
    late = context.Process(target=serve_fake_stage, args=(theirs, 0, port), daemon=True)
    threading.Timer(1.0, late.start).start()
    try:
        assert links.configure([pb.ConfigureRequest(generation=1)])[0].device == "fake"
    finally:
        links.close()
        late.join(5)
        ours.close()
