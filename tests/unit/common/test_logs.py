"""One line per event with the request's ids, from our code and from libraries; prompts and secrets stay out."""

import asyncio
import io
import json
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from services.common.config import TelemetryConfig
from services.common.logs import bound_request, setup_logging

Lines = Callable[[], list[dict[str, Any]]]

SECRET = " ".join(["the", "secret", "of", "the", "house"])


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Leaves the process's logging as it was."""
    root, vllm = logging.getLogger(), logging.getLogger("vllm")
    handlers, level, environment = root.handlers[:], root.level, os.environ.get("VLLM_CONFIGURE_LOGGING")
    vllm_handlers, propagate = vllm.handlers[:], vllm.propagate
    yield
    root.handlers[:], vllm.handlers[:], vllm.propagate = handlers, vllm_handlers, propagate
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()
    os.environ.pop("VLLM_CONFIGURE_LOGGING", None)
    if environment is not None:
        os.environ["VLLM_CONFIGURE_LOGGING"] = environment


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    """Logging as a service has it; call to get the lines so far."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    setup_logging("router", TelemetryConfig())
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_says_who_when_and_what(lines: Lines) -> None:
    structlog.get_logger("services.router").warning("replica lost", replica="r1", blocks=3)
    (line,) = lines()
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "replica lost",
        "replica": "r1",
        "blocks": 3,
        "level": "warning",
        "logger": "services.router",
        "service": "router",
        "process_id": os.getpid(),
    }


def test_libraries_go_the_same_way(lines: Lines) -> None:
    with bound_request("req-1", "ab" * 16):
        logging.getLogger("vllm.engine").info("loaded %d layers", 30)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old call", stacklevel=1)
    first, second = lines()
    assert (first["event"], first["logger"], first["request_id"]) == ("loaded 30 layers", "vllm.engine", "req-1")
    assert first["trace_id"] == "ab" * 16
    assert second["logger"] == "py.warnings"


def test_vllms_own_handler_is_taken_over(capsys: pytest.CaptureFixture[str]) -> None:
    vllm = logging.getLogger("vllm")
    vllm.addHandler(logging.StreamHandler())
    vllm.propagate = False
    setup_logging("router", TelemetryConfig())
    logging.getLogger("vllm.engine").warning("once")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["once"]
    assert os.environ["VLLM_CONFIGURE_LOGGING"] == "0"


async def test_ids_follow_tasks_and_do_not_mix(lines: Lines) -> None:
    log = structlog.get_logger()

    async def serve(request_id: str) -> None:
        with bound_request(request_id):
            await asyncio.sleep(0.01)
            log.info("served")
            await asyncio.to_thread(log.info, "in a thread")

    await asyncio.gather(*(serve(f"req-{number}") for number in range(5)))
    log.info("after")
    *served, after = lines()
    for event in ("served", "in a thread"):
        ids = sorted(line["request_id"] for line in served if line["event"] == event)
        assert ids == [f"req-{number}" for number in range(5)]
    assert "request_id" not in after


def test_levels(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("router", TelemetryConfig(log_level="warning"))
    structlog.get_logger("x").info("quiet")
    logging.getLogger("y").info("quiet")
    structlog.get_logger("x").warning("loud")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["loud"]


@pytest.mark.parametrize("name", ["prompt", "text", "messages", "token_ids", "api_key", "authorization", "password"])
def test_prompts_and_secrets_are_redacted(lines: Lines, name: str) -> None:
    structlog.get_logger().info("request", **{name: SECRET})
    (line,) = lines()
    assert line[name] == "[redacted]"


def test_passwords_in_urls_are_redacted(lines: Lines) -> None:
    structlog.get_logger().info("connected", url="rediss://user:hunter2@host:6379/0", other="redis://:hunter2@h")
    structlog.get_logger().info("cannot reach redis://:hunter2@host:6379/0")
    first, second = lines()
    assert first["url"] == "rediss://user:[redacted]@host:6379/0"
    assert first["other"] == "redis://:[redacted]@h"
    assert second["event"] == "cannot reach redis://:[redacted]@host:6379/0"


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_tracebacks_show_no_local_variables(log_format: Any, capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("router", TelemetryConfig(log_format=log_format))

    def fail(prompt: str) -> None:
        raise KeyError("the cause")

    try:
        fail(SECRET)
    except KeyError:
        structlog.get_logger().exception("failed")
        logging.getLogger("other").exception("failed too")
    text = capsys.readouterr().err
    assert text.count("KeyError: 'the cause'") == 2
    assert "in fail" in text
    assert SECRET not in text


def test_what_json_cannot_hold_does_not_break_a_line(lines: Lines) -> None:
    structlog.get_logger().info("odd", value=threading.Lock, surrogate="\ud800", data=b"\xff")
    assert lines()[0]["event"] == "odd"


def test_setting_up_twice_does_not_double_lines(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        setup_logging("router", TelemetryConfig())
    structlog.get_logger().info("once")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["once"]
