"""Runs the settings, interleaved: all of them on a group of prompts before the next group, in a new order each time."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from benchmarks.apex.metrics import Run
from benchmarks.apex.settings import FIXED, Setting
from services.cli.grid.asking import ask
from services.cli.grid.run import WARM_UP_TOKENS
from services.client.client import ForerunClient
from services.common.expert import Expert
from services.common.workloads.prompt import WorkloadPrompt

Clients = Mapping[str, ForerunClient]
"""By the name of the system."""


@dataclass(frozen=True, slots=True)
class Group:
    """Prompts of one workload that are asked at once."""

    name: str
    workload: str
    prompts: Sequence[WorkloadPrompt]


def groups_of(prompts: Mapping[str, Sequence[WorkloadPrompt]], batch: int, count: int) -> list[Group]:
    """Of each workload ``count`` groups of ``batch``, as far as there are prompts for them."""
    found = []
    for number in range(count):
        for workload, mine in prompts.items():
            some = mine[number * batch : (number + 1) * batch]
            if len(some) == batch:
                found.append(Group(f"{workload}-{number}", workload, some))
    return found


@dataclass(slots=True)
class Measurement:
    """Everything that was measured."""

    clients: Clients
    settings: Sequence[Setting]
    tokens: int
    """Of an answer at most."""
    runs: list[Run] = field(default_factory=list)
    experts: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """By profile and workload, the expert that requests are pinned to."""

    async def choose_experts(
        self,
        prompts: Mapping[str, Sequence[WorkloadPrompt]],
        pins: Sequence[Expert | None],
        advance: Callable[[], None],
    ) -> None:
        """Which of ``pins`` does best in a workload, with each profile: who answers what no router chooses for.

        On prompts that are not measured later. The profiles' replicas measure their step times meanwhile, which is all
        that this is for with None as the only one.
        """
        for system in sorted({each.system for each in self.settings} - {FIXED}):
            for workload, mine in prompts.items():
                await self._fill(self.clients[system], mine)
                paces = {}
                for expert in pins:
                    setting = Setting("", system, None if expert is None else expert.value)
                    runs = [await self._run(setting, Group("", workload, [each]), 1, 0) for each in mine]
                    paces[expert] = sum(run.seconds for run in runs) / sum(run.tokens for run in runs)
                best = min(paces, key=lambda each: paces[each])
                if best is not None:
                    self.experts[system][workload] = best.value
                advance()

    async def round(self, groups: Mapping[int, Sequence[Group]], number: int, advance: Callable[[], None]) -> None:
        """Every setting on every group once. ``groups``: by batch."""
        for batch, some in groups.items():
            for group in some:
                for system in dict.fromkeys(setting.system for setting in self.settings):
                    await self._fill(self.clients[system], group.prompts)
                order = list(self.settings)
                Random(f"{number} {batch} {group.name}").shuffle(order)
                for setting in order:
                    self.runs.append(await self._run(setting, group, batch, number))
                advance()

    async def _fill(self, client: ForerunClient, prompts: Sequence[WorkloadPrompt]) -> None:
        """Brings prompts into the prefix cache, so that no setting pays for them."""
        plain = Expert.PLAIN.value
        await asyncio.gather(*(ask(client, each, WARM_UP_TOKENS, expert=plain) for each in prompts))

    async def _run(self, setting: Setting, group: Group, batch: int, number: int) -> Run:
        expert = self.experts[setting.system][group.workload] if setting.by_workload else setting.expert
        client = self.clients[setting.system]
        began = time.perf_counter()
        answers = await asyncio.gather(
            *(
                ask(client, each, min(self.tokens, each.max_tokens), expert=expert, depth=setting.depth)
                for each in group.prompts
            )
        )
        return Run(
            setting=setting.name,
            workload=group.workload,
            batch=batch,
            round=number,
            group=group.name,
            tokens=sum(each.tokens for each in answers),
            seconds=time.perf_counter() - began,
            drafted=sum(each.drafted for each in answers),
            accepted=sum(each.accepted for each in answers),
            blocks=sum(each.blocks for each in answers),
        )
