"""Word problems and long chains of reasoning from reasoning-gym's generators.

To train and to validate on, the generators are those of ``forerun train`` with seeds that it leaves to evaluation; the
puzzles of the tests come from generators that it does not use. Zebra puzzles, which would suit them, need pycosat.
"""

import importlib
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from services.common.training.generated_prompts import FIRST_SEED, generator_factory
from services.common.training.prompt import Message
from services.common.workloads.prompt import WorkloadPrompt, WorkloadSplit

FIRST_SEEDS: Final[Mapping[WorkloadSplit, int]] = {"train": 100_000, "validation": 300_000, "test": 500_000}
"""An item is made from ``seed + index``; all of them below those of ``forerun train``."""
assert max(FIRST_SEEDS.values()) + 100_000 < min(FIRST_SEED.values())

_MATHS: Final = {
    "gsm_symbolic": "arithmetic.gsm_symbolic.gsm_symbolic",
    "simple_equations": "algebra.simple_equations",
    "fraction_simplification": "arithmetic.fraction_simplification",
}
_CHAINS: Final = {
    "knights_knaves": "logic.knights_knaves",
    "propositional_logic": "logic.propositional_logic",
    "countdown": "games.countdown",
    "family_relationships": "graphs.family_relationships",
    "word_sorting": "algorithmic.word_sorting",
}
_TEST_CHAINS: Final = {
    "circuit_logic": "logic.circuit_logic",
    "shortest_path": "graphs.shortest_path",
    "mini_sudoku": "games.mini_sudoku",
    "survo": "games.survo",
}
"""By name, the modules of ``reasoning_gym`` that make them."""

_STEP_BY_STEP: Final = "\n\nThink step by step and write every step down before you answer."
_MATHS_TOKENS, _CHAIN_TOKENS = 256, 384
_COUNTS: Final[Mapping[WorkloadSplit, int]] = {"train": 240, "validation": 80, "test": 120}
"""Items of each workload and part."""


def word_problems(wheel: Path, unpacked: Path) -> Iterator[WorkloadPrompt]:
    """The maths that is no test."""
    splits: tuple[WorkloadSplit, ...] = ("train", "validation")
    for split in splits:
        for text, source in _items(wheel, unpacked, _MATHS, split):
            yield WorkloadPrompt.make("maths", split, source, [Message("user", text)], _MATHS_TOKENS)


def chains(wheel: Path, unpacked: Path) -> Iterator[WorkloadPrompt]:
    """Puzzles that take many steps, all parts."""
    parts: Mapping[WorkloadSplit, Mapping[str, str]] = {
        "train": _CHAINS,
        "validation": _CHAINS,
        "test": _TEST_CHAINS,
    }
    for split, modules in parts.items():
        for text, source in _items(wheel, unpacked, modules, split):
            yield WorkloadPrompt.make("chains", split, source, [Message("user", text + _STEP_BY_STEP)], _CHAIN_TOKENS)


def _items(wheel: Path, unpacked: Path, modules: Mapping[str, str], split: WorkloadSplit) -> Iterator[tuple[str, str]]:
    """Questions and their sources, the generators in turn."""
    factory = generator_factory(wheel, unpacked, {path.split(".")[0] for path in modules.values()})
    sets = []
    for name, path in modules.items():
        importlib.import_module(f"reasoning_gym.{path}")
        sets.append((name, _data_set(factory, name, split)))
    for index in range(_COUNTS[split] // len(sets)):
        for name, data_set in sets:
            # Generators that fall back on the module's own random numbers become repeatable, too.
            random.seed(FIRST_SEEDS[split] + index)
            yield data_set[index]["question"], f"reasoning-gym/{name}"


def _data_set(factory: Any, name: str, split: WorkloadSplit) -> Any:
    random.seed(FIRST_SEEDS[split])
    return factory.create_dataset(name, seed=FIRST_SEEDS[split], size=_COUNTS[split])
