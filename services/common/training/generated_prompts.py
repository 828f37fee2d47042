"""Maths and puzzles from reasoning-gym's generators, as many as wanted.

The generators are loaded out of the wheel. Their packages import every generator at once, and with them a dozen
libraries that only a few need; so each package is entered as an empty one, and only the modules named here are run.
"""

import importlib
import random
import sys
import types
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from services.common.training.prompt import Message, Prompt, Split

FIRST_SEED: dict[Split, int] = {"train": 1_000_000, "held_out": 2_000_000}
"""A generator's item is made from ``seed + index``: the parts are disjoint, and seeds below are left to evaluation."""

_MODULES = {
    "maths": {
        "arithmetic": (
            "basic_arithmetic", "calendar_arithmetic", "chain_sum", "decimal_arithmetic", "dice",
            "fraction_simplification", "gcd", "gsm_symbolic.gsm_symbolic", "lcm", "leg_counting", "number_format",
            "prime_factorization", "products",
        ),
        "algebra": ("polynomial_equations", "polynomial_multiplication", "simple_equations", "simple_integration"),
        "algorithmic": ("base_conversion", "count_primes"),
        "probability": ("coin_flip",),
    },
    "puzzles": {
        "logic": ("aiw", "knights_knaves", "propositional_logic", "self_reference", "syllogisms"),
        "games": ("countdown", "puzzle24", "tower_of_hanoi"),
        "algorithmic": (
            "caesar_cipher", "letter_counting", "number_filtering", "number_sorting", "sentence_reordering",
            "spell_backward", "word_sequence_reversal", "word_sorting",
        ),
        "graphs": ("course_schedule", "family_relationships"),
        "cognition": ("needle_haystack", "number_sequences"),
    },
}  # fmt: skip
"""Generators by workload and package: those that ask in words and need nothing but what Forerun installs anyway."""

_WEIGHT = {"gsm_symbolic": 8, "chain_sum": 2, "knights_knaves": 2, "syllogism": 2, "family_relationships": 2}
"""How often a generator is used against the others; word problems are the bulk of the maths that people ask for."""


def generated_prompts(wheel: Path, unpacked: Path, counts: dict[Split, int]) -> Iterator[Prompt]:
    """Prompts of both workloads, ``counts`` of each in each part.

    Args:
        wheel: of reasoning-gym.
        unpacked: folder for its contents, which must stay while the generators run.
    """
    factory = generator_factory(wheel, unpacked, {package for modules in _MODULES.values() for package in modules})
    for workload, modules in _MODULES.items():
        generators = _generators(factory, modules)
        for split, count in counts.items():
            for question, name in _questions(factory, generators, split, count):
                yield Prompt.make(workload, f"reasoning-gym/{name}", split, [Message("user", question)])


def generator_factory(wheel: Path, unpacked: Path, packages: Collection[str]) -> Any:
    """reasoning-gym's ``factory`` module, with ``packages`` open to be imported from.

    Args:
        wheel: of reasoning-gym.
        unpacked: folder for its contents, which must stay while the generators run.
        packages: of ``reasoning_gym``, by name.
    """
    if not unpacked.is_dir():
        part = unpacked.with_suffix(".part")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(part)
        part.rename(unpacked)
    if str(unpacked) not in sys.path:
        sys.path.insert(0, str(unpacked))
    root = unpacked / "reasoning_gym"
    for name in ("", *sorted(packages)):
        package = types.ModuleType(f"reasoning_gym.{name}".rstrip("."))
        package.__path__ = [str(root / name)]
        sys.modules[package.__name__] = package
    # Before the factory, which it imports in turn.
    importlib.import_module("reasoning_gym.coaching")
    sys.modules["reasoning_gym"].data = importlib.import_module("reasoning_gym.data")  # type: ignore[attr-defined]
    return importlib.import_module("reasoning_gym.factory")


def _generators(factory: Any, modules: Mapping[str, Sequence[str]]) -> list[str]:
    before = set(factory.DATASETS)
    for package, names in modules.items():
        for name in names:
            importlib.import_module(f"reasoning_gym.{package}.{name}")
    found = sorted(set(factory.DATASETS) - before)
    return [name for name in found for _ in range(_WEIGHT.get(name, 1))]


def _questions(factory: Any, generators: list[str], split: Split, count: int) -> Iterator[tuple[str, str]]:
    first_seed = FIRST_SEED[split]
    share = -(-count // len(generators))
    for name in sorted(set(generators)):
        wanted = share * generators.count(name)
        # Generators that fall back on the module's own random numbers become repeatable, too.
        random.seed(first_seed)
        items = factory.create_dataset(name, seed=first_seed, size=wanted)
        for index in range(wanted):
            yield items[index]["question"], name
