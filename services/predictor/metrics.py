"""The sidecar's Prometheus metrics."""

from collections.abc import Mapping

from prometheus_client import Counter, Histogram

from services.common.metrics import ServiceMetrics

_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class PredictorMetrics(ServiceMetrics):
    """``forerun_requests_total{outcome}`` of every service, and the predictor's own."""

    def __init__(self) -> None:
        super().__init__("predictor")
        self._seconds = Histogram(
            "forerun_predictor_seconds", "Computing one call's answers.", buckets=_SECONDS, registry=self.registry
        )
        self._rows = Histogram("forerun_predictor_rows", "Requests in one call.", buckets=_ROWS, registry=self.registry)
        self._within = Counter(
            "forerun_predictor_within_total",
            "Answers said to end within a threshold, by the shortest one; none: within none of them.",
            ["tokens"],
            registry=self.registry,
        )

    def answered(self, seconds: float, rows: int, within: Mapping[str, int]) -> None:
        """One call. ``within``: how many rows by the shortest threshold whose cut-off they reach, or none."""
        self._seconds.observe(seconds)
        self._rows.observe(rows)
        for tokens, count in within.items():
            self._within.labels(tokens).inc(count)
