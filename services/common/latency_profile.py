"""How long a step takes by the rows in it: measured points and the lines between them."""

from bisect import bisect_right
from itertools import pairwise
from typing import Self

from pydantic import Field, PositiveFloat, model_validator

from services.common.config import ConfigModel


class LatencyProfile(ConfigModel):
    """Milliseconds by rows (sequences that decode one token each in a step)."""

    rows: tuple[PositiveFloat, ...] = Field(min_length=2)
    """Rising numbers of rows; means where the measured steps differed."""
    ms: tuple[PositiveFloat, ...]
    """Median time of a step with so many rows, in milliseconds; as many as ``rows``."""

    @model_validator(mode="after")
    def _check_points(self) -> Self:
        if len(self.rows) != len(self.ms):
            raise ValueError(f"{len(self.rows)} rows but {len(self.ms)} ms; give each rows its time")
        if any(later <= earlier for earlier, later in pairwise(self.rows)):
            raise ValueError(f"rows must rise; sort the points by rows: {list(self.rows)}")
        return self

    def at(self, rows: float) -> float:
        """Linear between the points and on from the last two; the first one's time for fewer rows."""
        if rows <= self.rows[0]:
            return self.ms[0]
        right = min(bisect_right(self.rows, rows), len(self.rows) - 1)
        left = right - 1
        slope = (self.ms[right] - self.ms[left]) / (self.rows[right] - self.rows[left])
        # Noise in the last two points must not make large batches free.
        return max(self.ms[left] + slope * (rows - self.rows[left]), min(self.ms[left], self.ms[right]))
