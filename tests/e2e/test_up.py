"""The shipped ``deploy/local.yaml`` with the real engine: two stages, both APIs, trace, metrics, a real kill."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.forerun_up import ForerunUp, forerun

CONFIG = Path(__file__).parents[2] / "deploy" / "local.yaml"
START_TIMEOUT_S = 400.0
"""Not a promise: the machine may be busy with other things."""

FREE_PORTS = ("router.server.listen=127.0.0.1:0", "router.server.metrics_listen=127.0.0.1:0",
              "router.http_listen=127.0.0.1:0", f"start_timeout_s={START_TIMEOUT_S:g}")  # fmt: skip

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def up(tmp_path: Path, model_path: Path) -> Iterator[ForerunUp]:
    overrides = [argument for value in FREE_PORTS for argument in ("--set", value)]
    with ForerunUp(tmp_path, CONFIG, *overrides, "--prompt", "What is the capital of France?") as started:
        started.wait_for_output("Serving.", START_TIMEOUT_S)
        yield started


def test_one_command_serves_a_real_model_over_two_stages(up: ForerunUp) -> None:
    here = ("--run-dir", str(up.run_dir))
    assert "Paris" in up.output
    trace_id = next(line.split()[2] for line in up.output.splitlines() if line.startswith("forerun trace "))
    spans = json.loads(forerun("trace", trace_id, "--json", *here).stdout)["spans"]
    workers = {span["process_id"] for span in spans if span["service"] == "worker"}
    assert {span["name"] for span in spans} >= {
        "forerun.request",
        "route",
        "admission",
        "stage.prefill",
        "stage.decode",
    }
    picture = json.loads(forerun("trace", trace_id, "--pipeline", "--json", *here).stdout)
    rows = ["".join(box["kind"] for box in lane["boxes"]) for lane in picture["lanes"]]
    assert len(rows) == 2
    assert rows[0] == rows[1]
    assert re.fullmatch("p+[v.]*", rows[0])
    assert workers == {up.pid_of("replica-0.stage-0"), up.pid_of("replica-0.stage-1")}

    state = up.state
    for unit in state["units"]:
        for _, page in unit["metrics"]:
            assert "forerun_" in httpx.get(f"http://{page}/metrics", timeout=10).text

    arguments = {"model": "smollm2-135m", "max_tokens": 12, "temperature": 0}
    question = arguments | {"messages": [{"role": "user", "content": "Name a colour."}]}
    over_http = httpx.post(f"{state['router_http']}/v1/chat/completions", json=question, timeout=60).json()
    over_grpc = forerun("generate", "Name a colour.", "--max-tokens", "12", "--temperature", "0", *here)
    assert over_http["choices"][0]["message"]["content"].strip() == over_grpc.stdout.strip() != ""

    assert forerun("status", *here).returncode == 0
    check = forerun("ledger", "check", *here)
    assert (check.returncode, check.stdout) == (0, "drift: 0\n")

    os.kill(up.pid_of("replica-0.stage-1"), signal.SIGKILL)
    assert up.wait_end(90) == 1
    assert "died       replica-0.stage-1 was killed by SIGKILL" in up.output
    assert up.left_behind() == []
