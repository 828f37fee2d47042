"""A span to be made, once what it tells of is over."""

from collections.abc import Sequence
from dataclasses import dataclass, field

AttributeValue = str | int | float | Sequence[str] | Sequence[int] | Sequence[float]


@dataclass(frozen=True, slots=True)
class SpanPlan:
    """Times are nanoseconds since the epoch."""

    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, AttributeValue]
    children: tuple["SpanPlan", ...] = field(default=())
