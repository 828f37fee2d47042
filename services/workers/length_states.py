"""What the predictor of remaining lengths reads of a step."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LengthStates:
    """Of some requests of one step; rows in one order throughout."""

    request_ids: tuple[str, ...]
    answer_tokens: tuple[int, ...]
    """That each answer has, the row's own included."""
    states: bytes
    """The residual stream at each request's newest token: [rows, hidden], float16, little-endian."""
