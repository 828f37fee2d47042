"""Errors to statuses and back, without a connection."""

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.errors import RequestEndedError, overloaded
from services.common.outcome import Outcome
from services.common.status import error_from_status, status_code, trailing_metadata

errors = st.builds(
    RequestEndedError,
    outcome=st.sampled_from(Outcome),
    message=st.text(min_size=1, max_size=30),
    field=st.from_regex(r"[a-z_.]{0,20}", fullmatch=True),
    retry_after_ms=st.none() | st.integers(0, 2**31),
)


@given(errors)
def test_an_error_survives_the_way_through_a_status(error: RequestEndedError) -> None:
    received = error_from_status(status_code(error), error.message, trailing_metadata(error))
    assert (received.outcome, received.message, received.field, received.retry_after_ms, received.not_found) == (
        error.outcome,
        error.message,
        error.field,
        error.retry_after_ms,
        error.not_found,
    )


def test_unknown_names_are_told_from_other_bad_input() -> None:
    error = RequestEndedError(Outcome.REJECTED_INVALID, "model: unknown", field="model", not_found=True)
    assert status_code(error) is grpc.StatusCode.NOT_FOUND
    assert error_from_status(status_code(error), error.message, trailing_metadata(error)).not_found


@given(st.text())
def test_trailing_metadata_is_printable_ascii(field: str) -> None:
    error = RequestEndedError(Outcome.REJECTED_INVALID, "x", field=field)
    for _, value in trailing_metadata(error):
        assert all(" " <= character <= "~" for character in value)
        assert len(value) <= 256


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (grpc.StatusCode.CANCELLED, Outcome.CANCELLED),
        (grpc.StatusCode.DEADLINE_EXCEEDED, Outcome.DEADLINE),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Outcome.REJECTED_OVERLOAD),
        (grpc.StatusCode.INVALID_ARGUMENT, Outcome.REJECTED_INVALID),
        (grpc.StatusCode.UNAVAILABLE, Outcome.REJECTED_UNAVAILABLE),
        (grpc.StatusCode.ABORTED, Outcome.REPLICA_LOST),
        (grpc.StatusCode.UNKNOWN, Outcome.INTERNAL),
        (grpc.StatusCode.UNIMPLEMENTED, Outcome.INTERNAL),
    ],
)
def test_a_bare_status_still_has_an_outcome(code: grpc.StatusCode, outcome: Outcome) -> None:
    error = error_from_status(code, None, None)
    assert (error.outcome, error.message) == (outcome, code.name)


def test_a_connection_lost_after_output_is_no_rejection() -> None:
    code = grpc.StatusCode.UNAVAILABLE
    assert error_from_status(code, "gone", None, has_output=True).outcome is Outcome.REPLICA_LOST
    assert error_from_status(code, "gone", None).outcome is Outcome.REJECTED_UNAVAILABLE
    said_so = trailing_metadata(RequestEndedError(Outcome.REJECTED_UNAVAILABLE, "none serving"))
    assert error_from_status(code, "none", said_so, has_output=True).outcome is Outcome.REJECTED_UNAVAILABLE


def test_hostile_metadata_is_ignored() -> None:
    trailing = (("forerun-outcome", "nonsense"), ("forerun-retry-after-ms", "-5"), ("other-bin", b"\xff"))
    error = error_from_status(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", trailing)
    assert error.outcome is Outcome.REJECTED_OVERLOAD
    assert error.retry_after_ms is None
    assert overloaded("full", 5).retry_after_ms == 5
