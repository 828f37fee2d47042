"""A client in a process that has no code of Forerun, made from reflection alone, under this grpcio and another one."""

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google.protobuf
import grpc
import pytest

from tests.support.fleet import FAST, Fleet
from tests.support.router_process import SERVICE, RouterProcess

CLIENT = Path(__file__).parents[1] / "support" / "reflection_client.py"
OTHER_GRPC, OTHER_PROTOBUF = "1.71.2", "5.29.5"
"""Two major versions of protobuf behind the server's, and the grpcio of their time."""


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        yield fleet.router({"r0": fleet.scheduler(fake=FAST, served_model_names=["tiny"], model="/nowhere")})
    finally:
        fleet.end()


@pytest.fixture(scope="module")
def other_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another grpcio in a folder of its own; skipped where it cannot be fetched."""
    folder = tmp_path_factory.mktemp("packages")
    install = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--no-deps"]
    install += ["--target", str(folder), "--python", sys.executable]
    install += [f"grpcio=={OTHER_GRPC}", f"grpcio-reflection=={OTHER_GRPC}", f"protobuf=={OTHER_PROTOBUF}"]
    done = subprocess.run(install, capture_output=True, text=True, timeout=90, check=False)
    if done.returncode:
        pytest.skip(f"grpcio {OTHER_GRPC} cannot be fetched: {done.stderr.strip().splitlines()[-1]}")
    return folder


def seen(packages: Path, router: RouterProcess) -> dict[str, Any]:
    """What the client saw. ``-S`` keeps the environment's own packages out, and Forerun with them."""
    command = [sys.executable, "-S", "-P", str(CLIENT), router.address, SERVICE]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(packages)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert SERVICE in told.pop("services")
    return told


def streamed(grpc_version: str, protobuf_version: str) -> dict[str, Any]:
    events = ["started", "delta", "delta", "delta", "finished"]
    return {"grpc": grpc_version, "protobuf": protobuf_version, "forerun": False, "events": events}


def test_the_same_grpcio(router: RouterProcess) -> None:
    packages = Path(sysconfig.get_path("platlib"))
    assert seen(packages, router) == streamed(grpc.__version__, google.protobuf.__version__)


def test_another_grpcio(router: RouterProcess, other_packages: Path) -> None:
    assert seen(other_packages, router) == streamed(OTHER_GRPC, OTHER_PROTOBUF)
