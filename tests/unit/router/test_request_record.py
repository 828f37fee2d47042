"""A request's span and metrics: names, attributes, one end."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from services.common import trace_names as names
from services.common.errors import RequestEndedError
from services.common.outcome import Outcome
from services.common.types import SamplingOptions
from services.router.request import Edge
from tests.support.router_fakes import (
    FakePool,
    FakeSession,
    answers,
    build_call,
    delta,
    fails,
    samples,
    stopped,
    tokens_request,
)

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def tracer(spans: InMemorySpanExporter):  # type: ignore[no-untyped-def]
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider.get_tracer("test")


async def test_the_request_span_joins_the_callers_trace_and_says_what_happened(spans: InMemorySpanExporter) -> None:
    replica = FakeSession("r0", answers(delta("a"), stopped(5)))
    under_test = build_call(FakePool(replica), tracer=tracer(spans))
    sampling = SamplingOptions(max_tokens=9, temperature=0.5, seed=4, stop=("x",))
    request = tokens_request(request_id="mine", model="tiny", sampling=sampling, traceparent=PARENT)
    async for _ in under_test.call.generate(request):
        pass
    route, span = spans.get_finished_spans()
    assert (route.name, span.name, span.kind) == (names.SPAN_ROUTE, names.SPAN_REQUEST, SpanKind.SERVER)
    assert f"{span.context.trace_id:032x}" == PARENT.split("-")[1]
    assert route.parent is not None
    assert route.parent.span_id == span.context.span_id
    attributes = span.attributes or {}
    expected = {
        names.GEN_AI_OPERATION: names.OPERATION_TEXT,
        names.GEN_AI_PROVIDER: names.PROVIDER,
        names.GEN_AI_REQUEST_MODEL: "tiny",
        names.GEN_AI_REQUEST_MAX_TOKENS: 9,
        names.GEN_AI_REQUEST_TEMPERATURE: 0.5,
        names.GEN_AI_REQUEST_SEED: 4,
        names.GEN_AI_REQUEST_STOP_SEQUENCES: ("x",),
        names.GEN_AI_USAGE_INPUT_TOKENS: 3,
        names.GEN_AI_USAGE_OUTPUT_TOKENS: 5,
        names.GEN_AI_RESPONSE_FINISH_REASONS: ("stop",),
        names.REQUEST_ID: "mine",
        names.OUTCOME: "stop",
    }
    assert {key: attributes[key] for key in expected} == expected
    assert (route.attributes or {})[names.REPLICA_ID] == "r0"
    # The replica's spans hang below the request's.
    submission = replica.submissions[0].submission
    assert submission.traceparent.split("-")[1:3] == [PARENT.split("-")[1], f"{span.context.span_id:016x}"]


@pytest.mark.parametrize(
    ("outcome", "is_fault"), [(Outcome.INTERNAL, True), (Outcome.DEADLINE, True), (Outcome.REJECTED_INVALID, False)]
)
async def test_an_error_is_the_spans_error_where_it_is_the_servers(
    spans: InMemorySpanExporter, outcome: Outcome, is_fault: bool
) -> None:
    under_test = build_call(FakePool(FakeSession("r0", fails(outcome))), tracer=tracer(spans))
    with pytest.raises(RequestEndedError):
        async for _ in under_test.call.generate(tokens_request()):
            pass
    span = spans.get_finished_spans()[-1]
    attributes = span.attributes or {}
    assert (attributes[names.OUTCOME], attributes[names.ERROR_TYPE]) == (outcome.value, outcome.value)
    assert (span.status.status_code is StatusCode.ERROR) is is_fault


async def test_latencies_and_tokens_are_counted() -> None:
    under_test = build_call(FakePool(FakeSession("r0", answers(delta("a"), stopped(5)))))
    async for _ in under_test.call.generate(tokens_request(edge=Edge.HTTP)):
        pass
    metrics = under_test.metrics
    assert samples(metrics, "forerun_time_to_first_token_seconds_count", "edge") == {"http": 1}
    assert samples(metrics, "forerun_time_per_output_token_seconds_count", "edge") == {"http": 1}
    assert samples(metrics, "forerun_request_duration_seconds_count", "outcome") == {"stop": 1}
    assert samples(metrics, "forerun_tokens_total", "kind") == {"prompt": 3, "output": 5}
    assert samples(metrics, "forerun_requests_in_flight", "edge") == {}
