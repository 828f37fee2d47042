"""The HTTP edge: vLLM's own app over the router, real processes, the ``openai`` client unchanged.

One router serves all tests of this module, since it takes long to start; a test that harms it puts it right again.
"""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.client import Chat, ChatMessage, ForerunClient
from services.common.outcome import Outcome
from services.common.trace_store import read_trace
from tests.support.fleet import Answer, Fleet, endless
from tests.support.free_ports import free_port
from tests.support.router_process import RouterProcess
from tests.support.scheduler_process import SchedulerProcess
from tests.support.tiny_model import VOCAB_SIZE, write_tiny_model
from tests.support.waiting import eventually

MODEL = "tiny"
KEY = "secret"
MAX_MODEL_LEN = 2048
MAX_REQUESTS = 8
MAX_BODY = 8 * 2**20
MESSAGES: Any = [{"role": "user", "content": "Grüße 🙂"}]

pytestmark = pytest.mark.timeout(240)


@dataclass
class Site:
    """The processes of this module and how to reach them."""

    scheduler: SchedulerProcess
    router: RouterProcess
    url: str
    traces: Path

    def openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0, timeout=30)

    def http(self, key: str = KEY) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, headers={"authorization": f"Bearer {key}"}, timeout=30)

    def grpc(self) -> ForerunClient:
        return ForerunClient(self.router.address, api_key=KEY, attempts=1)

    async def idle(self) -> None:
        """Until nothing is in flight."""
        async with self.grpc() as client, asyncio.timeout(5):
            while any(one.in_flight_requests for one in (await client.list_replicas()).replicas):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    def is_healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("http")
    model = write_tiny_model(folder / "model", MAX_MODEL_LEN)
    fleet = Fleet(folder)
    try:
        scheduler = fleet.scheduler(
            model=str(model),
            served_model_names=[MODEL],
            fake={"step_time_s": 0.01, "vocab_size": VOCAB_SIZE, "max_model_len": MAX_MODEL_LEN},
        )
        listen, traces = f"127.0.0.1:{free_port()}", folder / "traces"
        router = fleet.router(
            {"r0": scheduler},
            tokenizer=True,
            http_listen=listen,
            http_args={"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
            api_keys=[KEY],
            max_concurrent_requests=MAX_REQUESTS,
            max_request_bytes=MAX_BODY,
            telemetry={"traces_dir": str(traces)},
            server={"drain_timeout_s": 10},
        )
        yield Site(scheduler, router, f"http://{listen}", traces)
    finally:
        fleet.end()


def completion(**changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "Hello", "max_tokens": 4, "temperature": 0} | changes


# -- answers -----------------------------------------------------------------------------------------------------------


async def test_chat_whole_and_streamed_are_the_same_text(site: Site) -> None:
    client = site.openai()
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    whole = await client.chat.completions.create(**asked)
    stream = await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens > len("Grüße 🙂".encode())


async def test_choices_logprobs_and_echo(site: Site) -> None:
    client = site.openai()
    chat = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=3, n=3, logprobs=True, top_logprobs=2, seed=3
    )
    assert [choice.index for choice in chat.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in chat.choices}) == 3
    for choice in chat.choices:
        assert choice.logprobs is not None
        assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content or [])
    echoed = await client.completions.create(model=MODEL, prompt="abc", max_tokens=2, echo=True, logprobs=1)
    assert echoed.choices[0].text.startswith("abc")
    assert echoed.choices[0].logprobs is not None
    assert echoed.choices[0].logprobs.token_logprobs is not None
    assert echoed.choices[0].logprobs.token_logprobs[0] is None
    assert len(echoed.choices[0].logprobs.token_logprobs) == 5


async def test_streamed_choices_each_end_once(site: Site) -> None:
    stream = await site.openai().completions.create(
        model=MODEL, prompt="abc", max_tokens=5, n=3, stream=True, logprobs=1, seed=1, extra_body={"ignore_eos": True}
    )
    ends: dict[int, int] = {}
    tokens: dict[int, int] = {}
    async for chunk in stream:
        for choice in chunk.choices:
            tokens[choice.index] = tokens.get(choice.index, 0) + len((choice.logprobs and choice.logprobs.tokens) or [])
            if choice.finish_reason is not None:
                ends[choice.index] = ends.get(choice.index, 0) + 1
    assert ends == {0: 1, 1: 1, 2: 1}
    assert tokens == {0: 5, 1: 5, 2: 5}


async def test_several_prompts_stop_strings_responses_tools_and_models(site: Site) -> None:
    client = site.openai()
    several = await client.completions.create(model=MODEL, prompt=["one", "two", "three"], max_tokens=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    free = await client.completions.create(model=MODEL, prompt="abc", max_tokens=40, temperature=0)
    stop = free.choices[0].text.split()[3]
    stopped = await client.completions.create(model=MODEL, prompt="abc", max_tokens=40, temperature=0, stop=[stop])
    assert stopped.choices[0].finish_reason == "stop"
    assert stop not in stopped.choices[0].text
    response = await client.responses.create(model=MODEL, input="abc", max_output_tokens=3)
    assert response.output_text
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    tools: Any = [tool]
    chat = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=tools, max_tokens=3)
    assert chat.choices[0].finish_reason in ("length", "stop")
    assert [model.id for model in (await client.models.list()).data] == [MODEL]


async def test_both_edges_answer_alike(site: Site) -> None:
    client = site.openai()
    http_chat = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=8, temperature=0)
    http_text = await client.completions.create(model=MODEL, prompt="Grüße 🙂", max_tokens=8, temperature=0)
    async with site.grpc() as grpc:
        sampling = endless(max_tokens=8, temperature=0.0, ignore_eos=False)
        chat = Answer(grpc, [ChatMessage("user", "Grüße 🙂")], sampling)
        text = Answer(grpc, "Grüße 🙂", sampling)
        await asyncio.gather(chat.outcome(), text.outcome())
    assert (chat.text, text.text) == (http_chat.choices[0].message.content, http_text.choices[0].text)


async def test_text_and_chat_over_grpc_are_checked(site: Site) -> None:
    async with site.grpc() as client:
        for prompt, field in [
            ("", "prompt"),
            ("x" * 5000, "text"),
            ("x" * 3_000_000, "text"),
            ([ChatMessage("nobody", "x")], "chat"),
            ([ChatMessage("user", "x" * 5000)], "chat"),
            (Chat([ChatMessage("user", "x")], {"chat_template": "{{ 1 }}"}), "chat.template_arguments_json"),
        ]:
            answer = Answer(client, prompt)
            assert await answer.outcome() is Outcome.REJECTED_INVALID
            assert answer.error is not None
            assert answer.error.field == field
        plain = Answer(
            client, Chat([ChatMessage("user", "x")], {"add_generation_prompt": False}), endless(max_tokens=2)
        )
        assert await plain.outcome() is Outcome.LENGTH


# -- bad input ---------------------------------------------------------------------------------------------------------

BAD = [
    (completion(temperature=-1), 400, "temperature"),
    (completion(max_tokens=-1), 400, "max_tokens"),
    (completion(top_p=0), 400, "top_p"),
    (completion(n=0), 400, None),
    (completion(prompt=[]), 400, None),
    (completion(prompt=[1, VOCAB_SIZE + 5]), 400, "prompt"),
    (completion(prompt=[1] * (MAX_MODEL_LEN + 1)), 400, None),
    (completion(prompt="x" * 100_000), 400, None),
    (completion(logprobs=1000), 400, "logprobs"),
    (completion(response_format={"type": "json_schema"}), 400, None),
    (completion(model="unknown"), 404, "model"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("body", "status", "param"), BAD, ids=lambda value: str(value)[:0] or None)
async def test_bad_input_has_the_true_status_and_names_its_field(
    site: Site, body: dict[str, Any], status: int, param: str | None, stream: bool
) -> None:
    async with site.http() as client:
        answer = await client.post("/v1/completions", json=body | {"stream": stream})
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert error["code"] == status
        assert error["message"]
        if param is not None:
            assert error["param"] == param
        assert (await client.post("/v1/completions", json=completion())).status_code == 200


@pytest.mark.parametrize("body", [b"{", b"", b'{"model": "tiny", "prompt": "\xff"}', b"[]"])
async def test_bodies_that_are_no_request(site: Site, body: bytes) -> None:
    async with site.http() as client:
        answer = await client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400


async def test_a_20_mb_body_is_refused_at_once(site: Site) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"model": "tiny", "prompt": "'
        for _ in range(20):
            yield b"x" * 2**20

    async with site.http() as client:
        for content in (b"x" * (20 * 2**20), pieces()):
            began = time.monotonic()
            headers = {"content-type": "application/json"}
            answer = await client.post("/v1/completions", content=content, headers=headers)
            assert time.monotonic() - began < 5
            assert answer.status_code == 413
            assert "max_request_bytes" in answer.json()["error"]["message"]
        fits = completion(prompt="x" * (MAX_BODY - 1000))
        assert (await client.post("/v1/completions", json=fits)).status_code == 400
        assert (await client.get("/health")).status_code == 200


async def test_keys(site: Site) -> None:
    async with site.http(key="wrong") as client:
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
            assert (await client.post(path, json=completion())).status_code == 401
        assert (await client.get("/forerun/replicas")).status_code == 401
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/health")).status_code == 200


async def test_what_replicas_do_not_offer_is_no_internal_error(site: Site) -> None:
    async with site.http() as client:
        for path, body in [
            ("/v1/embeddings", {"model": MODEL, "input": "x"}),
            ("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "/x"}),
            ("/start_profile", {}),
            ("/sleep", {}),
            ("/scale_elastic_ep", {"new_data_parallel_size": 2}),
            ("/v1/score", {"model": MODEL, "queries": "a", "documents": ["b"]}),
        ]:
            assert (await client.post(path, json=body)).status_code in (400, 404, 405, 501), path
        assert (await client.post("/v1/completions", json=completion())).status_code == 200


# -- load, loss, leaving ----------------------------------------------------------------------------------------------


async def hold(site: Site, count: int) -> list[Answer]:
    """Fills ``count`` places of the router."""
    client = site.grpc()
    answers = [Answer(client, sampling=endless(max_tokens=1500)) for _ in range(count)]
    await asyncio.gather(*(answer.first_output() for answer in answers))
    return answers


async def test_a_full_router_answers_429_with_a_hint_and_stays_healthy(site: Site) -> None:
    held = await hold(site, MAX_REQUESTS)
    async with site.http() as client:
        for stream in (False, True):
            began = time.monotonic()
            answer = await client.post("/v1/completions", json=completion(stream=stream))
            assert time.monotonic() - began < 2
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["code"] == 429
        assert (await client.get("/health")).status_code == 200
        with pytest.raises(openai.RateLimitError):
            await site.openai().chat.completions.create(model=MODEL, messages=MESSAGES)
        # More prompts in one request than there are places: refused as a whole, and nothing of it stays.
        await asyncio.gather(*(answer.cancel() for answer in held))
        await site.idle()
        many = completion(prompt=["x"] * (MAX_REQUESTS + 4), max_tokens=200, ignore_eos=True)
        assert (await client.post("/v1/completions", json=many)).status_code == 429
        await site.idle()
        assert (await client.post("/v1/completions", json=completion())).status_code == 200


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_client_that_leaves_frees_the_replica(site: Site, stream: bool) -> None:
    async with site.http() as client:
        body = completion(max_tokens=1500, ignore_eos=True, stream=stream)
        task = asyncio.create_task(client.post("/v1/completions", json=body))
        await asyncio.sleep(0.5)
        async with site.grpc() as grpc:
            assert (await grpc.list_replicas()).replicas[0].in_flight_requests == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await site.idle()


async def test_traces_join_the_callers_and_are_named_in_the_answer(site: Site) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    async with site.http() as client:
        for stream in (False, True):
            answer = await client.post("/v1/completions", json=completion(stream=stream), headers=headers)
            assert answer.headers["forerun-trace-id"] == trace_id
        fresh = await client.post("/v1/completions", json=completion())
    assert len(fresh.headers["forerun-trace-id"]) == 32
    assert fresh.headers["forerun-trace-id"] not in (trace_id, "0" * 32)
    async with asyncio.timeout(5):
        while len(read_trace(site.traces, trace_id)) < 4:  # noqa: ASYNC110  (written by another process)
            await asyncio.sleep(0.1)
    assert {span.name for span in read_trace(site.traces, trace_id)} == {"forerun.request", "route"}


async def test_an_id_may_come_twice_and_in_any_form(site: Site) -> None:
    async with site.http() as client:
        headers = {"x-request-id": "any form / you like"}
        answers = await asyncio.gather(
            *(client.post("/v1/completions", json=completion(), headers=headers) for _ in range(4))
        )
    assert [answer.status_code for answer in answers] == [200] * 4


async def test_metrics_and_replicas(site: Site) -> None:
    async with site.http() as client:
        await client.post("/v1/completions", json=completion())
        page = (await client.get("/metrics")).text
        replicas = (await client.get("/forerun/replicas")).json()
    samples = [
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]
    assert len(samples) == len(set(samples))
    names = {name for name, _ in samples}
    assert {"forerun_requests_total", "forerun_time_to_first_token_seconds_count", "http_requests_total"} <= names
    assert ("forerun_replicas", (("state", "serving"),)) in samples
    assert [one["replica_id"] for one in replicas["replicas"]] == ["r0"]
    assert replicas["replicas"][0]["state"] == "REPLICA_STATE_SERVING"


async def test_every_refusal_counts_under_its_outcome(site: Site) -> None:
    async def counts() -> dict[str, float]:
        async with site.http() as client:
            page = (await client.get("/metrics")).text
        samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
        return {one.labels["outcome"]: one.value for one in samples if one.name == "forerun_requests_total"}

    before = await counts()
    async with site.http() as client:
        await client.post("/v1/completions", json=completion(temperature=-1))  # refused by vLLM's own checks
        await client.post("/v1/completions", json=completion(prompt=[VOCAB_SIZE]))  # by the domain call's
        await client.post("/v1/completions", json=completion(prompt=[VOCAB_SIZE], stream=True))
        await client.post("/v1/completions", json=completion())
    after = await counts()
    grown = {outcome: after[outcome] - before[outcome] for outcome in after if after[outcome] != before[outcome]}
    ended = grown.pop("stop", 0) + grown.pop("length", 0)
    assert (ended, grown) == (1, {"rejected-invalid": 3})


async def test_a_replica_killed_mid_answer_and_back(site: Site) -> None:
    async with site.http() as client:
        body = completion(max_tokens=1500, ignore_eos=True, stream=True)
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            site.scheduler.signal(signal.SIGKILL)
            rest = [line.removeprefix("data: ") async for line in lines if line]
        assert rest[-1] == "[DONE]"
        assert json.loads(rest[-2])["error"]["code"] == 502
        await eventually(lambda: not site.is_healthy())
        for stream in (False, True):
            refused = await client.post("/v1/completions", json=completion(stream=stream))
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
        site.scheduler.start()
        await eventually(site.is_healthy, 10)
        assert (await client.post("/v1/completions", json=completion())).status_code == 200
    assert "Traceback" not in site.router.log


async def test_sigterm_finishes_the_stream_and_ends(site: Site) -> None:
    async with site.http() as client:
        body = completion(max_tokens=100, ignore_eos=True, stream=True)
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            site.router.signal(signal.SIGTERM)
            await eventually(lambda: not site.is_healthy())
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert site.router.wait(10) == 0
    assert "nanobind" not in site.router.log


# -- start -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[tuple[Fleet, SchedulerProcess]]:
    fleet = Fleet(tmp_path)
    try:
        model = str(write_tiny_model(tmp_path / "model"))
        yield fleet, fleet.scheduler(model=model, fake={"vocab_size": VOCAB_SIZE, "max_model_len": MAX_MODEL_LEN})
    finally:
        fleet.end()


async def test_sigterm_while_the_tokenizer_loads(replica: tuple[Fleet, SchedulerProcess]) -> None:
    fleet, scheduler = replica
    router = fleet.router({"r0": scheduler}, wait=False, tokenizer=True)
    await eventually(lambda: "loading the tokenizer" in router.log, 20)
    assert (router.health(""), router.health()) == ("SERVING", "NOT_SERVING")
    async with ForerunClient(router.address, attempts=1) as client:
        assert await Answer(client, "text").outcome() is Outcome.REJECTED_UNAVAILABLE
        assert await Answer(client, sampling=endless(max_tokens=2)).outcome() is Outcome.LENGTH
    router.signal(signal.SIGTERM)
    assert router.wait(10) == 0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"http_args": {"no_such_flag": 1}}, "http_args.no_such_flag"),
        ({"model": "/nowhere/at/all"}, "/nowhere/at/all"),
    ],
    ids=["flag", "model"],
)
def test_what_cannot_be_loaded_ends_the_router_by_name(
    replica: tuple[Fleet, SchedulerProcess], config: dict[str, Any], message: str
) -> None:
    fleet, scheduler = replica
    router = fleet.router({"r0": scheduler}, wait=False, tokenizer=True, http_listen="127.0.0.1:0", **config)
    assert router.wait(120) == 2
    assert message in router.log
