"""What the parts have found so far: values by figure, in the order in which the report shows them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.report import Figure


@dataclass
class Findings:
    """Filled part by part."""

    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    details: dict[str, Any] = field(default_factory=dict)
    """What is not a figure: choices that were made by measuring."""

    def add(self, name: str, values: Sequence[float]) -> None:
        """One value a round. Without values there is no figure."""
        if values:
            self.values[name].extend(values)

    def figures(self) -> dict[str, Figure]:
        """Medians with their spread."""
        return {name: Figure.of(values, _unit(name)) for name, values in self.values.items()}


def _unit(name: str) -> str:
    if "tokens_per_s" in name:
        return "tokens/s"
    return "ms/token" if "_ms_" in name else "ratio"
