"""Whether putting an admission off pays (papers/spexis section 5.2 and A.3; derivation in the design, section 5)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Delay:
    """The two ways to go on from here; times in iterations."""

    running: int
    """Requests that decode now."""
    between_admissions: float
    """Until the next request could start after this one."""
    delay: int
    """How long this one would be put off."""
    prefill: float
    """What its prefill costs, and the recomputation of a preempted request."""
    evictions: float
    """Preemptions to be expected if it starts now."""
    unscheduled: float
    """How long a preempted request then waits."""


def gain(way: Delay) -> float:
    """Tokens per time between two admissions when this one is put off, over those when it is not.

    A request that is put off beyond the next arrival puts that one off too, since the order is kept; so admissions
    are at least ``delay`` apart.
    """
    cycle = max(way.between_admissions, way.delay, 1.0)
    put_off = (way.running * cycle + cycle - way.delay) / (cycle + way.prefill)
    tokens = (way.running + 1) * cycle - way.evictions * way.unscheduled
    at_once = tokens / (cycle + (1 + way.evictions) * way.prefill)
    return put_off / at_once if at_once > 0 else float("inf")
