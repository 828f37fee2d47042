"""Learning rates, as shares of the peak."""

import math


def learning_rate_share(step: int, steps: int, warmup_share: float, final_share: float) -> float:
    """Linear warm-up over ``warmup_share`` of all ``steps``, then half a cosine down to ``final_share``."""
    warmup = max(1, round(steps * warmup_share))
    if step < warmup:
        return (step + 1) / warmup
    return final_share + (1 - final_share) * half_cosine((step - warmup) / max(1, steps - warmup))


def half_cosine(done: float) -> float:
    """From 1 to 0 while ``done`` goes from 0 to 1."""
    return 0.5 * (1 + math.cos(math.pi * done))
