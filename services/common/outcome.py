"""The closed set of ways a request ends; one name each in statuses, metric labels and spans."""

from enum import StrEnum

import grpc
from forerun.inference.v1 import outcome_pb2


class Outcome(StrEnum):
    """How a request, or one of its choices, ended. The value is the metric label and the span attribute."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    REJECTED_OVERLOAD = "rejected-overload"
    REJECTED_INVALID = "rejected-invalid"
    REJECTED_UNAVAILABLE = "rejected-unavailable"
    REPLICA_LOST = "replica-lost"
    INTERNAL = "internal"

    @property
    def is_success(self) -> bool:
        """The engine itself ended the request."""
        return self in (Outcome.STOP, Outcome.LENGTH)

    @property
    def status_code(self) -> grpc.StatusCode:
        """The gRPC status that an RPC with this outcome ends in."""
        return _STATUS_CODES[self]

    @property
    def http_status(self) -> int:
        """The HTTP status of a response that ends in this outcome before its first byte."""
        return _HTTP_STATUSES[self]

    def to_proto(self) -> "outcome_pb2.Outcome.ValueType":
        """The enum value on the wire."""
        return outcome_pb2.Outcome.Value(f"OUTCOME_{self.name}")

    @classmethod
    def from_proto(cls, value: int) -> "Outcome":
        """From the wire; an unknown or unspecified value, as from a newer peer, is INTERNAL."""
        name = outcome_pb2.Outcome.Name(outcome_pb2.Outcome.ValueType(value)) if value in _PROTO_VALUES else ""
        return cls.__members__.get(name.removeprefix("OUTCOME_"), cls.INTERNAL)


_PROTO_VALUES = frozenset(outcome_pb2.Outcome.values())

_STATUS_CODES = {
    Outcome.STOP: grpc.StatusCode.OK,
    Outcome.LENGTH: grpc.StatusCode.OK,
    Outcome.CANCELLED: grpc.StatusCode.CANCELLED,
    Outcome.DEADLINE: grpc.StatusCode.DEADLINE_EXCEEDED,
    Outcome.REJECTED_OVERLOAD: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Outcome.REJECTED_INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    # Nothing was emitted, so a retry is safe; only then UNAVAILABLE, which clients retry by themselves.
    Outcome.REJECTED_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    # Text was emitted: a blind retry would repeat minutes of work and show the text twice.
    Outcome.REPLICA_LOST: grpc.StatusCode.ABORTED,
    Outcome.INTERNAL: grpc.StatusCode.INTERNAL,
}

_HTTP_STATUSES = {
    Outcome.STOP: 200,
    Outcome.LENGTH: 200,
    Outcome.CANCELLED: 499,
    Outcome.DEADLINE: 504,
    Outcome.REJECTED_OVERLOAD: 429,
    Outcome.REJECTED_INVALID: 400,
    Outcome.REJECTED_UNAVAILABLE: 503,
    Outcome.REPLICA_LOST: 502,
    Outcome.INTERNAL: 500,
}
