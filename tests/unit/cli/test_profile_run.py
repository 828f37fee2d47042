"""What is read of the stages while a batch decodes, with pages and answers that a test makes."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import httpx
import pytest

from services.cli.errors import CliError
from services.cli.profile_run import SplitRun
from services.client import ForerunClient
from services.common.errors import RequestEndedError
from services.common.outcome import Outcome
from services.common.types import Delta
from services.scheduler.sp_split import Split

STEP_S = 0.001


class Pipeline:
    """Counts as two stages of 2 ms and 3 ms with 4 ms from step to step do, whose every request gets a token a step."""

    def __init__(self, fails_after: int | None = None) -> None:
        self.steps = 0
        self.live = 0
        self.cancelled = 0
        self._fails_after = fails_after

    async def generate(self, prompt: object, sampling: object) -> AsyncGenerator[Delta, None]:
        self.live += 1
        try:
            while True:
                await asyncio.sleep(STEP_S)
                self.steps += 1
                if self._fails_after is not None and self.steps > self._fails_after:
                    raise RequestEndedError(Outcome.REPLICA_LOST, "the engine died")
                yield Delta(0, "", (7,))
        finally:
            self.live -= 1
            self.cancelled += 1

    def page(self, request: httpx.Request) -> httpx.Response:
        name, total = "forerun_sp_draft_confidence_bucket", float(self.steps)
        running = {("0.5", False): total, ("+Inf", False): total, ("0.5", True): 0.0, ("+Inf", True): 3 * total}
        drafts = "".join(f'{name}{{le="{le}",right="{right}"}} {sum_}\n' for (le, right), sum_ in running.items())
        stage = {"first": (0.0025, 0.0005), "last": (0.003, 0.0)}.get(request.url.host)
        if stage is None:
            return httpx.Response(200, text=drafts)
        busy, draft = stage
        overhead = 0.0005
        counters = {
            "busy_seconds_total": busy * self.steps,
            "draft_seconds_total": draft * self.steps,
            "overhead_seconds_total": overhead * self.steps,
            "idle_seconds_total": (0.004 - busy - overhead) * self.steps,
            "step_seconds_count": self.steps,
            "scheduled_requests_total": 3 * self.steps,
        }
        return httpx.Response(200, text="".join(f"forerun_stage_{name} {value}\n" for name, value in counters.items()))


def run_over(pipeline: Pipeline, handler: Any = None) -> SplitRun:
    http = httpx.AsyncClient(transport=httpx.MockTransport(handler or pipeline.page))
    client = cast(ForerunClient, pipeline)
    return SplitRun(Split(sp=2), client, http, ["first", "last", "core"], [[1], [2]])


async def test_a_window_is_what_the_stages_counted() -> None:
    pipeline = Pipeline()
    window = await run_over(pipeline).measure(3, seconds=0.01)
    assert (window.batch, window.steps_in_flight) == (3, 2)
    assert window.step_ms == pytest.approx(4.0)
    assert [stage.rows for stage in window.stages] == pytest.approx([3.0, 3.0])
    assert [stage.model_ms for stage in window.stages] == pytest.approx([2.5, 3.5])
    assert [stage.draft_ms for stage in window.stages] == pytest.approx([0.5, 0.0])
    (unsure, unsure_right), (sure, sure_right) = window.drafts
    assert (unsure_right, sure_right, sure) == (0.0, 3 * unsure, 3 * unsure)
    assert unsure > 0
    assert window.tokens_per_s > 0
    assert (pipeline.live, pipeline.cancelled) == (0, 3)


async def test_a_request_that_ends_is_an_error_and_takes_the_others_with_it() -> None:
    pipeline = Pipeline(fails_after=5)
    with pytest.raises(CliError, match=r"a request ended while the stages were measured: .*the engine died"):
        await run_over(pipeline).measure(3, seconds=0.01)
    assert pipeline.live == 0


async def test_a_page_that_does_not_answer_is_named() -> None:
    with pytest.raises(CliError, match="http://first/metrics does not answer"):
        await run_over(Pipeline(), lambda _: httpx.Response(500)).measure(1, seconds=0.01)
