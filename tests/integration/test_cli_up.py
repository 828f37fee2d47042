"""``forerun up`` with real Redis, schedulers and router over the fake engine, and the commands that look at it."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.certificate_authority import CertificateAuthority
from tests.support.forerun_up import FORERUN, ForerunUp, forerun

pytestmark = pytest.mark.timeout(300)

CONFIG = """
model: fake
router:
  tokenizer: false
  http_listen: null
  server: {listen: "127.0.0.1:0", metrics_listen: null}
replicas:
  - {engine: fake, fake: {step_time_s: 0.02}}
  - {engine: fake, fake: {step_time_s: 0.02}}
drain_timeout_s: 10
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "local.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def up(tmp_path: Path, config: Path) -> Iterator[ForerunUp]:
    with ForerunUp(tmp_path, config) as started:
        started.wait_ready()
        yield started


def test_commands_over_a_running_system_and_an_orderly_end(up: ForerunUp, config: Path, tmp_path: Path) -> None:
    here = ("--run-dir", str(up.run_dir))

    # Whole answers: the fake engine's natural end is drawn, and could come at once.
    whole = ("--ignore-eos", *here)
    answer = forerun("generate", "--tokens", "1,2,3", "--max-tokens", "8", "--trace", *whole)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip()
    trace_id = answer.stderr.split()[-1]

    events = forerun("generate", "--tokens", "1 2 3", "--max-tokens", "4", "--json", "--request-id", "mine", *whole)
    lines = [json.loads(line) for line in events.stdout.splitlines()]
    assert [lines[0]["event"], lines[-1]["event"], lines[-1]["outcome"]] == ["started", "finished", "length"]

    drawn = forerun("trace", trace_id, *here)
    assert drawn.returncode == 0, drawn.stderr
    assert "forerun.request" in drawn.stdout
    assert "admission" in drawn.stdout
    by_request = json.loads(forerun("trace", "mine", "--json", *here).stdout)
    assert by_request["trace_id"] == lines[0]["trace_id"]

    status = json.loads(forerun("status", "--json", *here).stdout)
    assert {process["name"]: process["health"] for process in status["processes"]} == {
        "redis": "SERVING", "replica-0.scheduler": "SERVING", "replica-1.scheduler": "SERVING", "router": "SERVING",
    }  # fmt: skip
    assert [replica["state"] for replica in status["replicas"]] == ["serving", "serving"]

    rows = json.loads(forerun("ledger", "show", "--json", *here).stdout)
    assert [row["replica"]["replica_id"] for row in rows] == ["replica-0", "replica-1"]
    check = forerun("ledger", "check", *here)
    assert (check.returncode, check.stdout) == (0, "drift: 0\n")

    second = forerun("up", "--file", str(config), *here)
    assert second.returncode == 2
    assert "another `forerun up`" in second.stderr

    asking = ask_for_150_tokens(up, tmp_path / "answer")
    up.signal(signal.SIGTERM)
    assert asking.wait(30) == 0
    last = json.loads((tmp_path / "answer").read_text().splitlines()[-1])
    assert last["usage"]["output_tokens"] == 150, "a request in flight must be allowed to finish"
    assert up.wait_end() == 0
    assert up.left_behind() == []
    stopped = [line.split()[1] for line in up.output.splitlines() if line.startswith("stopped")]
    assert stopped[0] == "router"
    assert stopped[-1] == "redis"
    assert forerun("status", *here).returncode == 2


def ask_for_150_tokens(up: ForerunUp, file: Path) -> "subprocess.Popen[bytes]":
    """A request whose answer has begun when this returns."""
    command = [*FORERUN, "generate", "--tokens", "1", "--max-tokens", "150", "--ignore-eos", "--json"]
    with file.open("wb") as output:
        asking = subprocess.Popen([*command, "--run-dir", str(up.run_dir)], stdout=output)
    deadline = time.monotonic() + 60
    while "delta" not in file.read_text():
        assert asking.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return asking


def test_a_dead_replica_is_reported_and_the_other_serves_on(up: ForerunUp) -> None:
    here = ("--run-dir", str(up.run_dir))
    os.kill(up.pid_of("replica-0.scheduler"), signal.SIGKILL)
    up.wait_for_output("replica-0 is gone.")
    assert "died       replica-0.scheduler was killed by SIGKILL" in up.output
    for _ in range(2):
        assert forerun("generate", "--tokens", "1,2", "--max-tokens", "3", *here).returncode == 0
    status = forerun("status", *here)
    assert status.returncode == 1
    assert "lost" in status.stdout

    os.kill(up.pid_of("router"), signal.SIGKILL)
    assert up.wait_end() == 1
    assert "nothing is left that could serve" in up.output
    assert up.left_behind() == []


def test_kill_9_leaves_nothing(up: ForerunUp) -> None:
    up.signal(signal.SIGKILL)
    up.wait_end()
    assert up.left_behind() == []


def test_a_second_signal_stops_at_once(up: ForerunUp) -> None:
    # A stopped process cannot drain.
    os.kill(up.pid_of("router"), signal.SIGSTOP)
    up.signal(signal.SIGINT)
    up.wait_for_output("Draining")
    started = time.monotonic()
    up.signal(signal.SIGINT)
    assert up.wait_end() == 0
    assert time.monotonic() - started < 8
    assert up.left_behind() == []


def test_a_replica_is_started_again_where_the_file_says_so(tmp_path: Path, config: Path) -> None:
    with ForerunUp(tmp_path, config, "--set", "restart=replica") as up:
        up.wait_ready()
        for name, unit in (("replica-1", "replica-1.scheduler"), ("redis", "redis")):
            ready = up.output.count(f"ready      {unit}")
            os.kill(up.pid_of(unit), signal.SIGKILL)
            up.wait_for_output(f"Starting {name} again (1 of at most 5).")
            deadline = time.monotonic() + 60
            while up.output.count(f"ready      {unit}") == ready:
                assert time.monotonic() < deadline, up.output
                time.sleep(0.1)
        deadline = time.monotonic() + 30
        while forerun("status", "--run-dir", str(up.run_dir)).returncode != 0:
            assert time.monotonic() < deadline
        up.signal(signal.SIGINT)
        assert up.wait_end() == 0
        assert up.left_behind() == []


def test_a_signal_while_starting_ends_it(tmp_path: Path, config: Path) -> None:
    with ForerunUp(tmp_path, config) as up:
        up.wait_for_output("starting   router")
        up.signal(signal.SIGINT)
        assert up.wait_end() == 130
        assert up.left_behind() == []


def test_an_engine_that_does_not_start_is_reported(tmp_path: Path, config: Path) -> None:
    with ForerunUp(tmp_path, config, "--set", "replicas.1.fake.fail_start=true") as up:
        up.note_processes()
        assert up.wait_end() == 1
        assert "died       replica-1.scheduler ended with exit code" in up.output
        assert up.left_behind() == []


def test_mistakes_are_answered_before_anything_starts(tmp_path: Path, config: Path) -> None:
    here = ("--file", str(config), "--run-dir", str(tmp_path / "run"))
    wrong = forerun("up", *here, "--set", "router.http_lsten=x")
    assert wrong.returncode == 2
    assert "router.http_lsten: unknown field; did you mean http_listen?" in wrong.stderr

    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config.write_text(CONFIG.replace("127.0.0.1:0", address))
        result = forerun("up", *here)
    assert result.returncode == 2
    assert f"{config}:6: router.server.listen: {address} is taken by" in result.stderr
    assert not list((tmp_path / "run" / "logs").glob("*"))

    missing = forerun("up", "--file", str(tmp_path / "none.yaml"))
    assert missing.returncode == 2
    assert "none.yaml does not exist" in missing.stderr
    assert "Traceback" not in wrong.stderr + result.stderr + missing.stderr


def test_mutual_tls_on_every_hop_and_a_key_at_the_edge(tmp_path: Path, config: Path) -> None:
    authority = CertificateAuthority.create(tmp_path / "certificates")
    server, client = authority.issue("server"), authority.issue("client")
    config.write_text(
        CONFIG.replace("  tokenizer: false", "  tokenizer: false\n  api_keys: [open-sesame]")
        + f"""
tls:
  server: {{cert_file: {server.cert_file}, key_file: {server.key_file}, ca_file: {authority.ca_file}}}
  client: {{cert_file: {client.cert_file}, key_file: {client.key_file}, ca_file: {authority.ca_file}}}
"""
    )
    with ForerunUp(tmp_path, config) as up:
        up.wait_ready()
        here = ("--run-dir", str(up.run_dir))
        ask = ("generate", "--tokens", "1,2", "--max-tokens", "3")
        with_key = forerun(*ask, "--api-key", "open-sesame", *here)
        assert with_key.returncode == 0, with_key.stderr
        without_key = forerun(*ask, *here)
        assert without_key.returncode == 2
        assert "API key" in without_key.stderr
        router = up.state["router_grpc"]
        in_plain_text = forerun(*ask, "--api-key", "open-sesame", "--router", router, "--deadline", "5")
        assert in_plain_text.returncode in (4, 5)
        without_certificate = forerun(
            *ask, "--api-key", "open-sesame", "--router", router, "--ca-file", str(authority.ca_file), "--deadline", "5"
        )
        assert without_certificate.returncode in (4, 5)
        assert forerun("status", "--api-key", "open-sesame", *here).returncode == 0
        up.signal(signal.SIGINT)
        assert up.wait_end() == 0
