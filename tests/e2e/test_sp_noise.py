"""The shared sampling noise: vLLM's own draw, the target's distribution, and more agreement than independent noise."""

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

from services.workers.sampling_noise import request_seed, token_seed
from services.workers.vllm_drafter import draw

TOKENS = 12
DRAWS = 20_000


def logits(seed: int) -> torch.Tensor:
    return torch.randn(TOKENS, generator=torch.Generator().manual_seed(seed)) * 1.5


def seeds(kind: str) -> list[int]:
    """As many seeds as draws: those of one answer, of many answers' first tokens, or (wrong) one for all."""
    if kind == "one answer":
        return [token_seed(request_seed(3, "", 0), index) for index in range(DRAWS)]
    if kind == "many answers":
        return [token_seed(request_seed(None, f"request-{index}", 1), 0) for index in range(DRAWS)]
    return [token_seed(request_seed(3, "", 0), 0)] * DRAWS


def chi_square(counts: Counter[int], probabilities: list[float]) -> float:
    return sum((counts[token] - DRAWS * p) ** 2 / (DRAWS * p) for token, p in enumerate(probabilities))


CRITICAL = 31.3
"""Of chi-square with TOKENS - 1 = 11 degrees of freedom, one in a thousand. The seeds are fixed: nothing is left to
chance from run to run."""


@pytest.mark.parametrize(
    ("kind", "is_right"), [("one answer", True), ("many answers", True), ("the same for every token", False)]
)
def test_draws_follow_the_targets_distribution(kind: str, is_right: bool) -> None:
    scores = logits(1)
    drawn = draw(scores.expand(DRAWS, TOKENS).contiguous(), seeds(kind)).tolist()
    statistic = chi_square(Counter(drawn), torch.softmax(scores, dim=-1).tolist())
    assert (statistic < CRITICAL) is is_right, statistic


def test_successive_tokens_of_an_answer_are_independent() -> None:
    scores = torch.zeros(DRAWS, 4)
    drawn = draw(scores, [token_seed(request_seed(9, "", 0), index) for index in range(DRAWS)]).tolist()
    pairs = Counter(pairwise(drawn))
    expected = (DRAWS - 1) / 16
    statistic = sum((pairs[one, two] - expected) ** 2 / expected for one in range(4) for two in range(4))
    assert statistic < 37.7, "chi-square with 15 degrees of freedom, one in a thousand"


def test_the_sampler_draws_the_same() -> None:
    rows = 64
    scores = torch.randn(rows, 500, generator=torch.Generator().manual_seed(2))
    chosen = [token_seed(request_seed(row, "", 0), 5) for row in range(rows)]
    generators = {row: torch.Generator().manual_seed(seed) for row, seed in enumerate(chosen)}
    sampled, _ = TopKTopPSampler().forward_cpu(scores.clone(), generators, None, None)
    assert torch.equal(draw(scores, chosen), sampled.view(-1))


def test_shared_noise_makes_draft_and_target_agree_more_often() -> None:
    """A draft whose distribution is near the target's: independent draws agree rarely, shared ones mostly."""
    target = logits(1).expand(DRAWS, TOKENS).contiguous()
    draft = (logits(1) + 0.3 * logits(2)).expand(DRAWS, TOKENS).contiguous()
    chosen = seeds("many answers")
    sampled = draw(target, chosen)
    shared = (draw(draft, chosen) == sampled).float().mean().item()
    independent = (draw(draft, [seed ^ 1 for seed in chosen]) == sampled).float().mean().item()
    p, q = torch.softmax(target[0], dim=-1), torch.softmax(draft[0], dim=-1)
    assert independent == pytest.approx((p * q).sum().item(), abs=0.02)
    # No coupling agrees more often than one minus the total variation; this one comes near.
    best = 1 - 0.5 * (p - q).abs().sum().item()
    assert independent + 0.3 < shared <= best + 0.02
    assert math.isclose(shared, best, abs_tol=0.15)
