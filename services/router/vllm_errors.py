"""How a request ended, as the exceptions that vLLM's HTTP app turns into statuses and error bodies.

All derive from ``GenerationError`` as well, which vLLM's streams report without a stack trace in the log: a full
queue is no fault of the server's code.
"""

from http import HTTPStatus

from vllm.exceptions import GenerationError, GracefulHTTPError, VLLMNotFoundError, VLLMValidationError

from services.common.errors import RequestEndedError
from services.common.outcome import Outcome


class EndedHttpError(GracefulHTTPError, GenerationError):
    """Any ending but bad input: 429, 502, 503, 504 or 500."""

    def __init__(self, error: RequestEndedError) -> None:
        status = HTTPStatus.SERVICE_UNAVAILABLE
        if error.outcome is not Outcome.CANCELLED:  # 499 is no registered status, and nobody is left to read it
            status = HTTPStatus(error.outcome.http_status)
        GracefulHTTPError.__init__(self, error.message, status)
        self.status_code = status
        self.ended = error


class InvalidHttpError(VLLMValidationError, GenerationError):
    """Bad input: 400, naming the field as HTTP clients know it."""

    def __init__(self, error: RequestEndedError) -> None:
        VLLMValidationError.__init__(self, error.message, parameter=_http_field(error.field))
        self.status_code = HTTPStatus.BAD_REQUEST
        self.ended = error

    def __str__(self) -> str:
        return self.ended.message


class NotFoundHttpError(VLLMNotFoundError, GenerationError):
    """Something that does not exist: 404."""

    def __init__(self, error: RequestEndedError) -> None:
        Exception.__init__(self, error.message)
        self.status_code = HTTPStatus.NOT_FOUND
        self.ended = error


HttpError = EndedHttpError | InvalidHttpError | NotFoundHttpError


def http_error(error: RequestEndedError) -> HttpError:
    """The exception to raise into vLLM's HTTP app."""
    if error.not_found:
        return NotFoundHttpError(error)
    if error.outcome is Outcome.REJECTED_INVALID:
        return InvalidHttpError(error)
    return EndedHttpError(error)


def _http_field(field: str) -> str | None:
    return field.removeprefix("sampling.") or None
