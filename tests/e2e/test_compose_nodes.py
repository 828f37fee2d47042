"""The three-node compose topology, run from its own files in network namespaces: serves, and survives what nodes do.

A small checkpoint takes the model's place; tracing and monitoring, which others make, are left out.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from services.client import ForerunClient, Started
from services.common.config import ClientTlsConfig
from services.common.errors import RequestEndedError
from services.common.types import Finished, SamplingOptions
from tests.support.compose_nodes import Changes, Nodes, can_make_namespaces, running
from tests.support.compose_project import make_secrets, read_project
from tests.support.tiny_checkpoint import write_tiny_checkpoint

pytestmark = [
    pytest.mark.nodes,
    pytest.mark.skipif(not can_make_namespaces(), reason="needs root and network namespaces"),
    pytest.mark.timeout(600),
]

FILES = ("node-a.yaml", "node-b.yaml", "node-c.yaml")
OTHERS = ("predictor", "otel-collector", "jaeger", "prometheus", "grafana")
STAGES = ("stage-b-0", "stage-b-1", "stage-c-0")
SCHEDULERS, ROUTERS = ("scheduler-0", "scheduler-1"), ("router-0", "router-1")
REQUESTS = 200
START_S = 300.0


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    make_secrets(folder)
    return folder


@pytest.fixture(scope="module")
def nodes(secrets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    models = tmp_path_factory.mktemp("models")
    write_tiny_checkpoint(models / "model", layers=4, hidden_size=128)
    variables = {"FORERUN_IMAGE": "none", "FORERUN_MODELS": str(models), "FORERUN_SECRETS": str(secrets)}
    projects = [read_project(name, variables) for name in FILES]
    engine = [
        "--set", "engine_args.max_model_len=1024", "--set", "engine_args.dtype=float32",
        "--set", "engine_args.enforce_eager=true", "--set", f"engine_args.kv_cache_memory_bytes={64 << 20}",
        "--set", "telemetry.otlp_endpoint=null",
    ]  # fmt: skip
    quiet = ["--set", "telemetry.otlp_endpoint=null"]
    redis_here = {
        "command": [sys.executable, "-m", "tests.support.tls_redis"],
        "healthcheck": {"test": ["CMD", "forerun", "version"]},
    }
    changes = Changes(
        OTHERS,
        dict.fromkeys(SCHEDULERS, engine) | dict.fromkeys((*STAGES, *ROUTERS), quiet),
        {"redis": redis_here},
    )
    with running(projects, tmp_path_factory.mktemp("nodes"), changes) as nodes:
        for name in nodes.containers:
            nodes.start(name)
        nodes.wait_healthy("redis", *STAGES, *SCHEDULERS, *ROUTERS, timeout_s=START_S)
        yield nodes


def client(nodes: Nodes, secrets: Path, router: str) -> ForerunClient:
    tls = ClientTlsConfig(
        ca_file=secrets / "ca.pem",
        cert_file=secrets / "forerun.pem",
        key_file=secrets / "forerun.key",
        server_name_override=router,
    )
    key = (secrets / "api-keys").read_text().split()[0]
    return ForerunClient(f"{nodes.containers[router].address}:50051", tls=tls, api_key=key)


async def ask(source: ForerunClient, number: int, tokens: int = 12) -> tuple[str, str]:
    """Who answered, empty when nobody did, and how it ended."""
    replica = ""
    prompt = tuple(3 + (number * 7 + position) % 200 for position in range(20 + number % 50))
    try:
        async for event in source.generate(
            prompt, SamplingOptions(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        ):
            if isinstance(event, Started):
                replica = event.replica_id
            if isinstance(event, Finished):
                return replica, event.outcome.value
    except RequestEndedError as error:
        return replica, error.outcome.value
    raise AssertionError("a stream ended without an outcome")


async def crowd(nodes: Nodes, secrets: Path, requests: int, tokens: int = 12) -> list[tuple[str, str]]:
    """Both routers asked in turn, 16 requests at once."""
    places = asyncio.Semaphore(16)
    async with client(nodes, secrets, "router-0") as first, client(nodes, secrets, "router-1") as second:

        async def one(number: int) -> tuple[str, str]:
            async with places:
                return await ask((first, second)[number % 2], number, tokens)

        return await asyncio.gather(*map(one, range(requests)))


async def all_is_well(nodes: Nodes, secrets: Path, timeout_s: float) -> None:
    """Both replicas answer again; what has ended is started again meanwhile, as ``restart: unless-stopped`` does."""
    async with asyncio.timeout(timeout_s):
        while True:
            for name, container in nodes.containers.items():
                if not container.runs:
                    nodes.start(name)
            answers = await crowd(nodes, secrets, 12)
            if Counter(outcome for _, outcome in answers) == {"length": 12} and len({who for who, _ in answers}) == 2:
                return
            await asyncio.sleep(1)


async def test_both_routers_and_both_replicas_serve(nodes: Nodes, secrets: Path) -> None:
    answers = await crowd(nodes, secrets, REQUESTS)
    assert Counter(outcome for _, outcome in answers) == {"length": REQUESTS}
    assert {replica for replica, _ in answers} == {"replica-0", "replica-1"}


async def test_redis_dies_and_comes_back(nodes: Nodes, secrets: Path) -> None:
    nodes.kill("redis")
    assert Counter(outcome for _, outcome in await crowd(nodes, secrets, 24)) == {"length": 24}
    nodes.start("redis")
    await all_is_well(nodes, secrets, 60)


async def replica_0_is_lost_by(disaster: Callable[[], None], nodes: Nodes, secrets: Path) -> None:
    """Under load: who had text already loses it by name; all others are served by the replica that is left."""
    load = asyncio.create_task(crowd(nodes, secrets, 64, tokens=200))
    await asyncio.sleep(1.0)
    disaster()
    answers = await asyncio.wait_for(load, 120)
    assert {outcome for _, outcome in answers} <= {"length", "replica-lost"}
    assert {replica for replica, outcome in answers if outcome == "replica-lost"} <= {"replica-0"}
    assert Counter(await crowd(nodes, secrets, 24)) == {("replica-1", "length"): 24}


async def test_the_cable_between_two_stages_is_cut(nodes: Nodes, secrets: Path) -> None:
    await replica_0_is_lost_by(lambda: nodes.cut("stage-c-0"), nodes, secrets)
    nodes.mend("stage-c-0")
    await all_is_well(nodes, secrets, START_S)


async def test_a_node_dies_and_comes_back(nodes: Nodes, secrets: Path) -> None:
    await replica_0_is_lost_by(lambda: nodes.kill("stage-c-0"), nodes, secrets)
    await all_is_well(nodes, secrets, START_S)


async def test_strangers_are_refused(nodes: Nodes, secrets: Path) -> None:
    for name, port in (("stage-b-0", 50071), ("scheduler-0", 50061), ("router-0", 50051)):
        address = f"{nodes.containers[name].address}:{port}"
        plain = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.cli", "health", address, stdout=asyncio.subprocess.DEVNULL
        )
        assert await plain.wait() == 1
    with pytest.raises(redis.ConnectionError):
        redis.Redis(host=nodes.containers["redis"].address, port=6379).ping()
