"""How far predictions were off, and whether the planner would have picked what was the fastest."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from services.scheduler.sp_split import Split


@dataclass(frozen=True)
class Outcome:
    """One split at one batch."""

    split: Split
    batch: int
    predicted: float
    """Tokens per second."""
    measured: tuple[float, ...]
    """Tokens per second, round by round."""

    @property
    def error(self) -> float:
        """The prediction's relative error against the median; positive where too much was promised."""
        return self.predicted / median(self.measured) - 1.0


@dataclass(frozen=True)
class Pick:
    """What the planner would choose for a batch."""

    pick: Outcome
    best: Outcome
    """By the median of what was measured."""

    @property
    def is_best(self) -> bool:
        """The planner's first choice was the fastest."""
        return self.pick is self.best

    @property
    def is_tied(self) -> bool:
        """It was not, by less than the rounds differ: its best round reaches the fastest one's worst."""
        return not self.is_best and max(self.pick.measured) >= min(self.best.measured)


@dataclass(frozen=True)
class Verdict:
    """Over all splits and batches."""

    error_max: float
    error_mean: float
    """Of the errors' sizes."""
    picks: dict[int, Pick]
    """By batch."""

    @property
    def picks_best(self) -> float:
        """Share of batches."""
        return mean(pick.is_best for pick in self.picks.values())

    @property
    def picks_best_or_tied(self) -> float:
        """Share of batches."""
        return mean(pick.is_best or pick.is_tied for pick in self.picks.values())

    def table(self) -> str:
        """In Markdown, a line a batch."""
        lines = [
            "| batch | planner's pick | predicted | measured | fastest | measured | verdict |",
            "|---|---|---|---|---|---|---|",
        ]
        for batch, pick in self.picks.items():
            said = "best" if pick.is_best else "tied" if pick.is_tied else "missed"
            lines.append(
                f"| {batch} | {pick.pick.split} | {pick.pick.predicted:.0f} | {median(pick.pick.measured):.0f} | "
                f"{pick.best.split} | {median(pick.best.measured):.0f} | {said} |"
            )
        return "\n".join(lines)


def judge(outcomes: Sequence[Outcome]) -> Verdict:
    """Raises ``ValueError`` without outcomes."""
    picks = {}
    for batch in sorted({outcome.batch for outcome in outcomes}):
        of_batch = [outcome for outcome in outcomes if outcome.batch == batch]
        pick = max(of_batch, key=lambda outcome: outcome.predicted)
        picks[batch] = Pick(pick, max(of_batch, key=lambda outcome: median(outcome.measured)))
    sizes = [abs(outcome.error) for outcome in outcomes]
    return Verdict(max(sizes), mean(sizes), picks)
