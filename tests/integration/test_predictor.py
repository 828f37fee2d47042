"""The predictor in a process of its own, and the client by which a stage asks it."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from forerun.predictor.v1 import service_pb2 as pb
from forerun.predictor.v1 import service_pb2_grpc
from forerun.stage.v1 import service_pb2 as stage_pb
from prometheus_client import CollectorRegistry

from services.common.rpc import aio_channel
from services.common.status import FIELD_KEY
from services.predictor.model import RemainingLengthModel
from services.workers.length_client import TIMEOUT_S, LengthClient
from services.workers.length_states import LengthStates
from services.workers.metrics import StageMetrics
from tests.support.free_ports import free_port
from tests.support.service_process import ServiceProcess
from tests.support.small_predictor import write_random_predictor
from tests.support.waiting import eventually

TARGET = "f" * 64
STATES = np.random.default_rng(0).normal(size=(3, 64)).astype("<f2")
AGES = (0, 5, 300)


class PredictorProcess(ServiceProcess):
    name = "predictor"

    def __init__(self, folder: Path, **config: Any) -> None:
        address = f"127.0.0.1:{free_port()}"
        super().__init__(folder, address, {"server": {"listen": address}, **config})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RemainingLengthModel]:
    folder = tmp_path_factory.mktemp("model")
    return folder, write_random_predictor(folder)


@pytest.fixture
def predictor(tmp_path: Path, model: tuple[Path, RemainingLengthModel]) -> Iterator[PredictorProcess]:
    process = PredictorProcess(tmp_path, models=[str(model[0])], max_rows=64).start()
    yield process
    process.end()


@pytest.fixture
async def stub(predictor: PredictorProcess) -> AsyncIterator[Any]:
    async with aio_channel(predictor.address) as channel:
        yield service_pb2_grpc.PredictorServiceStub(channel)


def request(**changes: Any) -> pb.PredictRemainingRequest:
    fields: dict[str, Any] = {"target_fingerprint": TARGET, "layer": 2, "states": STATES.tobytes()}
    return pb.PredictRemainingRequest(**fields | {"answer_tokens": AGES} | changes)


async def test_it_answers_as_the_model_does(stub: Any, model: tuple[Path, RemainingLengthModel]) -> None:
    answer = await stub.PredictRemaining(request())
    assert list(answer.thresholds) == [4, 8, 16, 32, 64]
    expected = model[1].chances(STATES, np.array(AGES))
    assert np.array(answer.probabilities).reshape(3, 5) == pytest.approx(expected, abs=1e-6)
    (listed,) = (await stub.ListModels(pb.ListModelsRequest())).models
    assert (listed.target, listed.layer, listed.hidden_size) == ("tiny", 2, 64)


NAN = np.full((3, 64), np.nan, "<f2").tobytes()


@pytest.mark.parametrize(
    ("changes", "code", "field", "names"),
    [
        ({"target_fingerprint": "other"}, "NOT_FOUND", "target_fingerprint", "loaded: tiny after layer 2"),
        ({"layer": 7}, "NOT_FOUND", "target_fingerprint", "after layer 7"),
        ({"answer_tokens": ()}, "INVALID_ARGUMENT", "answer_tokens", "0 rows, must be 1 to 64"),
        ({"answer_tokens": (1,) * 65}, "INVALID_ARGUMENT", "answer_tokens", "65 rows"),
        ({"states": b""}, "INVALID_ARGUMENT", "states", "0 bytes, must be 384: 3 rows of 64"),
        ({"states": STATES.tobytes() + b"\0"}, "INVALID_ARGUMENT", "states", "385 bytes"),
        ({"states": NAN}, "INVALID_ARGUMENT", "states", "not finite"),
    ],
)
async def test_what_it_cannot_answer_names_the_field(
    stub: Any, changes: dict[str, Any], code: str, field: str, names: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=names) as caught:
        await stub.PredictRemaining(request(**changes))
    assert caught.value.code().name == code
    assert (FIELD_KEY, field) in [tuple(each) for each in caught.value.trailing_metadata() or ()]
    await stub.PredictRemaining(request())


def test_a_model_that_is_not_there_ends_it_at_once(tmp_path: Path) -> None:
    process = PredictorProcess(tmp_path, models=[str(tmp_path / "none")]).spawn()
    assert process.wait(20) == 2
    assert "none/config.json: No such file" in process.log


class Asking:
    """A stage's client, and what became of its calls."""

    def __init__(self, address: str) -> None:
        self._registry = CollectorRegistry()
        self.answers: list[stage_pb.RemainingLengths] = []
        self.client = LengthClient(aio_channel(address), TARGET, 2, StageMetrics(self._registry), self.answers.append)

    def ask(self) -> None:
        self.client.ask(LengthStates(("a", "b", "c"), AGES, STATES.tobytes()))

    def counted(self, result: str) -> float:
        return self._registry.get_sample_value("forerun_stage_length_calls_total", {"result": result}) or 0.0


@pytest.fixture
async def asking(predictor: PredictorProcess) -> AsyncIterator[Asking]:
    made = Asking(predictor.address)
    yield made
    await made.client.close()


async def test_a_stage_gets_the_answer_of_each_request(
    asking: Asking, model: tuple[Path, RemainingLengthModel]
) -> None:
    asking.ask()
    await eventually(lambda: asking.answers)
    (lengths,) = asking.answers
    assert [(each.request_id, each.answer_tokens) for each in lengths.lengths] == [("a", 0), ("b", 5), ("c", 300)]
    expected = model[1].chances(STATES, np.array(AGES))
    assert np.array([each.within for each in lengths.lengths]) == pytest.approx(expected, abs=1e-6)


async def test_a_dead_predictor_costs_a_counter_and_is_found_again(asking: Asking, predictor: PredictorProcess) -> None:
    predictor.signal(signal.SIGKILL)
    predictor.wait(5)
    asking.ask()
    await eventually(lambda: asking.counted("failed") == 1)
    predictor.start()

    async def answered() -> bool:
        asking.ask()
        await asyncio.sleep(0.1)
        return bool(asking.answers)

    async with asyncio.timeout(20):
        while not await answered():
            pass


async def test_a_predictor_that_stands_still_is_not_waited_for(asking: Asking, predictor: PredictorProcess) -> None:
    asking.ask()
    await eventually(lambda: asking.counted("answered") == 1)
    predictor.signal(signal.SIGSTOP)
    try:
        for _ in range(100):
            asking.ask()
        await eventually(lambda: asking.counted("failed") == 1, timeout_s=TIMEOUT_S + 5)
        assert asking.counted("busy") == 99, "one call at a time"
    finally:
        predictor.signal(signal.SIGCONT)
    await asyncio.sleep(0.1)
    asking.ask()
    await eventually(lambda: asking.counted("answered") == 2)
