"""Operating points between speed and waste (papers/apex section 4.7)."""

from dataclasses import dataclass
from typing import Final, Literal

ProfileName = Literal["speed", "balanced", "efficient"]


@dataclass(frozen=True, slots=True)
class Profile:
    """Weights of the utility of a block (section 4.5), in the paper's order."""

    accepted: float
    """Of log(accepted + 0.1)."""
    waste: float
    """Against the share of drafts that was rejected."""
    regret: float
    """Against the distance to the request's best action."""
    expert_regret: float
    """Against the distance to the best depth of the same expert."""

    @property
    def waste_price(self) -> float:
        """Emitted tokens that a wasted draft token is held to cost where blocks are chosen by tokens per second.

        By how much the profile minds waste more than ``speed``, which wants tokens per second and nothing else. Own
        choice: the paper has no such price.
        """
        return self.waste - PROFILES["speed"].waste


PROFILES: Final[dict[ProfileName, Profile]] = {
    "speed": Profile(0.20, 0.20, 0.20, 0.15),
    "balanced": Profile(0.30, 0.35, 0.15, 0.20),
    "efficient": Profile(0.40, 0.50, 0.10, 0.25),
}
