"""Structured logs of one process: structlog and the standard library (gRPC, vLLM) through one formatter to stderr.

Prompts and secrets never get here: values under telling names are redacted, tracebacks carry no local variables.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from services.common.config import TelemetryConfig

REDACTED = "[redacted]"

_SECRET_NAMES = frozenset(
    {"prompt", "messages", "text", "content", "token_ids", "prompt_token_ids", "password", "secret", "api_key",
     "authorization", "url_password", "private_key"}
)  # fmt: skip

_URL_PASSWORD = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]+@")


def setup_logging(service: str, config: TelemetryConfig) -> None:
    """Configures the process's logs, vLLM's included, imported already or not. ``service`` is in every line."""
    _take_over_vllm()
    shared = _shared_processors(service)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=_renderers(config.log_format))
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(config.log_level.upper())
    logging.captureWarnings(True)


def _take_over_vllm() -> None:
    """Lets vLLM's lines pass through our handler, which adds the request's ids; it installs one of its own else."""
    os.environ["VLLM_CONFIGURE_LOGGING"] = "0"
    vllm = logging.getLogger("vllm")
    vllm.handlers.clear()
    vllm.propagate = True


@contextmanager
def bound_request(request_id: str, trace_id: str = "") -> Iterator[None]:
    """Every line logged inside, in this task or thread, carries the request's ids."""
    values = {"request_id": request_id} | ({"trace_id": trace_id} if trace_id else {})
    with structlog.contextvars.bound_contextvars(**values):
        yield


def _shared_processors(service: str) -> list[Processor]:
    def add_service(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["service"] = service
        event["process_id"] = os.getpid()
        return event

    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        add_service,
        redact,
    ]


def _renderers(log_format: str) -> list[Processor]:
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    if log_format == "json":
        return [remove_meta, structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    # The default traceback shows local variables, and with them prompts.
    console = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    return [remove_meta, console]


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replaces values under the names of prompts and secrets, and passwords inside URLs."""
    for name, value in event.items():
        if name in _SECRET_NAMES:
            event[name] = REDACTED
        elif isinstance(value, str) and "://" in value:
            event[name] = _URL_PASSWORD.sub(rf"\1:{REDACTED}@", value)
    return event
