"""Trace and span ids from the operating system's entropy."""

import secrets

from opentelemetry.sdk.trace.id_generator import IdGenerator


class SystemIdGenerator(IdGenerator):
    """OpenTelemetry's own generator draws from Python's ``random``, which vLLM seeds with the model's seed: two stages
    would then give their spans the same ids, and so would every restart."""

    def generate_span_id(self) -> int:
        """64 random bits, not zero."""
        return secrets.randbits(64) or 1

    def generate_trace_id(self) -> int:
        """128 random bits, not zero."""
        return secrets.randbits(128) or 1
