"""What a depth model can be trained without, to see what it is worth (papers/apex section 5.4)."""

from enum import StrEnum

from services.scheduler.apex.features import TEXT_FEATURES, VERIFIER_FEATURES


class Ablation(StrEnum):
    """What is left out."""

    SURVIVAL = "survival"
    """The loss on hazards."""
    COST = "cost"
    """The losses on cost and throughput."""
    TEXT = "text"
    """Entropy and repetition of the text."""
    VERIFIER = "verifier"
    """What became of the blocks before."""

    @property
    def features(self) -> tuple[str, ...]:
        """Names of those that the model must not see."""
        return {Ablation.TEXT: TEXT_FEATURES, Ablation.VERIFIER: VERIFIER_FEATURES}.get(self, ())
