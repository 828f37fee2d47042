"""The exception that ends a request; raised anywhere, turned into a status at the edge only."""

from services.common.outcome import Outcome


class RequestEndedError(Exception):
    """A request ended otherwise than by the engine's own stop.

    Attributes:
        outcome: what ended it.
        message: for people; names the value at fault, the limit and the fix.
        field: the request field at fault, with ``REJECTED_INVALID``.
        retry_after_ms: when to try again, with ``REJECTED_OVERLOAD`` and ``REJECTED_UNAVAILABLE``.
        not_found: the field names something that does not exist (an unknown model): NOT_FOUND / 404.
    """

    def __init__(
        self,
        outcome: Outcome,
        message: str,
        *,
        field: str = "",
        retry_after_ms: int | None = None,
        not_found: bool = False,
    ) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.field = field
        self.retry_after_ms = retry_after_ms
        self.not_found = not_found


def invalid(field: str, message: str) -> RequestEndedError:
    """A request that its sender must change before it is sent again."""
    return RequestEndedError(Outcome.REJECTED_INVALID, f"{field}: {message}", field=field)


def overloaded(message: str, retry_after_ms: int) -> RequestEndedError:
    """A request refused because a queue is full."""
    return RequestEndedError(Outcome.REJECTED_OVERLOAD, message, retry_after_ms=retry_after_ms)


def unavailable(message: str, retry_after_ms: int = 1000) -> RequestEndedError:
    """A request refused because nothing can serve it now; nothing was emitted."""
    return RequestEndedError(Outcome.REJECTED_UNAVAILABLE, message, retry_after_ms=retry_after_ms)


class ConfigError(Exception):
    """A configuration that cannot work; the message names file, line, field and fix. Exit code 2."""
