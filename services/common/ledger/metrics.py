"""Prometheus metrics of the ledger's two sides."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class WriterMetrics:
    """What a replica's writer counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reachable = Gauge(
            "forerun_ledger_writer_reachable", "1 while the last write to the ledger succeeded", registry=registry
        )
        self.writes = Counter(
            "forerun_ledger_writes",
            "Writes to the ledger, by result: written, failed, fenced",
            ["result"],
            registry=registry,
        )
        for result in ("written", "failed", "fenced"):
            self.writes.labels(result)
        self.rebuilds = Counter(
            "forerun_ledger_rebuilds", "Writes of the whole entry: at start and after Redis lost it", registry=registry
        )
        self.write_seconds = Histogram(
            "forerun_ledger_write_seconds",
            "Time of one write to the ledger, off the engine's thread",
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5),
            registry=registry,
        )


class ViewMetrics:
    """What a router's view counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reachable = Gauge(
            "forerun_ledger_view_reachable", "1 while the last reading of the ledger succeeded", registry=registry
        )
        self.replicas = Gauge("forerun_ledger_view_replicas", "Live replicas in the last reading", registry=registry)
        self.refreshed_at = Gauge(
            "forerun_ledger_view_refreshed_timestamp_seconds", "Unix time of the last reading", registry=registry
        )
        self.lookups = Counter(
            "forerun_ledger_prefix_lookups",
            "Prompts looked for in the index of cached prefixes, by result: found, unknown, unavailable",
            ["result"],
            registry=registry,
        )
        self.reservations = Counter(
            "forerun_ledger_reservations",
            "Reservations asked for, by result: granted, refused, unavailable",
            ["result"],
            registry=registry,
        )
        for counter, results in (
            (self.lookups, ("found", "unknown", "unavailable")),
            (self.reservations, ("granted", "refused", "unavailable")),
        ):
            for result in results:
                counter.labels(result)
