"""How the forecasts' peaks compare with the ones that came, from the replica's histogram."""

from collections.abc import Mapping
from dataclasses import dataclass

_NAME = "forerun_admission_forecast_peak_ratio"


@dataclass(frozen=True, slots=True)
class ForecastRatios:
    """Forecasts of one run, by forecast over observed peak."""

    at_most: tuple[tuple[float, float], ...]
    """Bound and how many forecasts had a ratio up to it, ascending."""

    @classmethod
    def of(cls, samples: Mapping[str, float]) -> "ForecastRatios":
        """From ``scrape`` with the label ``le``."""
        prefix = f"{_NAME}_bucket{{le="
        bounds = ((name.removeprefix(prefix)[:-1], count) for name, count in samples.items() if name.startswith(prefix))
        return cls(tuple(sorted((float(bound), count) for bound, count in bounds)))

    @property
    def count(self) -> float:
        """Forecasts that were checked."""
        return self.at_most[-1][1] if self.at_most else 0.0

    def share_up_to(self, ratio: float) -> float:
        """Of the forecasts; ``ratio`` must be a bound of the histogram. Up to 1 the peak was not over-estimated."""
        return dict(self.at_most)[ratio] / self.count

    def median(self) -> float:
        """Within its bucket by linear interpolation, as Prometheus does it."""
        half, low, below = self.count / 2, 0.0, 0.0
        for bound, count in self.at_most:
            if count >= half and count > below:
                return low + (bound - low) * (half - below) / (count - below)
            low, below = bound, count
        raise ValueError("no forecast was checked")
