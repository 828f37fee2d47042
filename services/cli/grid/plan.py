"""What is asked, and in which order. Pure.

All actions of a prompt follow one another in an order of its own, so that a machine whose speed drifts is as fast with
one action as with another.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from random import Random

from services.common.expert import Expert
from services.common.expert_action import PLAIN, Action
from services.common.training.prompt import stable_hash
from services.common.workloads.prompt import WorkloadPrompt
from services.router.apex.training.request_table import Key


@dataclass(frozen=True, slots=True)
class Job:
    """Prompts that are asked at once, all with the same action."""

    prompts: Sequence[WorkloadPrompt]
    action: Action
    is_first: bool = False
    """Of its prompts: nothing of them is in the prefix cache yet."""


def actions_of(experts: Sequence[Expert], depths: Sequence[int]) -> list[Action]:
    """A plain block, and every drafting expert at every depth but 0."""
    drafting = [expert for expert in experts if expert is not Expert.PLAIN]
    return [PLAIN, *(Action(expert, depth) for expert in drafting for depth in sorted({*depths} - {0}))]


def interleaved(workloads: Sequence[Sequence[WorkloadPrompt]]) -> list[WorkloadPrompt]:
    """The first prompt of each workload, then the second: a run that is cut off has some of all."""
    return [prompt for prompt in chain.from_iterable(zip_longest(*workloads)) if prompt is not None]


def jobs(
    prompts: Sequence[WorkloadPrompt],
    actions: Sequence[Action],
    done: Collection[Key],
    concurrency: int,
    seed: int,
) -> Iterator[Job]:
    """What is not done yet.

    Args:
        prompts: in their order, ``concurrency`` of them at once.
        actions: of every prompt.
        done: is left out.
        concurrency: requests in flight.
        seed: of the order of a prompt's actions.
    """
    for begin in range(0, len(prompts), concurrency):
        group = prompts[begin : begin + concurrency]
        order = list(actions)
        Random(stable_hash(f"{seed} {group[0].id}")).shuffle(order)
        is_first = True
        for action in order:
            left = [each for each in group if key_of(each, action) not in done]
            if left:
                yield Job(left, action, is_first)
                is_first = False


def key_of(prompt: WorkloadPrompt, action: Action) -> Key:
    """See ``Key``."""
    return prompt.id, action.expert.value, action.depth
