"""Draws the predicted throughput of each split over the batch."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from services.scheduler.sp_planner import plan_split
from services.scheduler.sp_profile import Profile

MAX_POINTS = 64


def draw_throughput(profile: Profile, drop: float | None, path: Path) -> None:
    """Writes one line a split, from one sequence to what its KV memory holds; the file's ending names the format.

    Raises ``OSError`` when ``path`` cannot be written.
    """
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot(xlabel="sequences at once", ylabel="predicted tokens/s", title=profile.model)
    for split in profile.splits:
        stride = -(-split.kv_sequences // MAX_POINTS)
        batches = [*range(1, split.kv_sequences, stride), split.kv_sequences]
        throughput = [plan_split(split, batch, drop).prediction.tokens_per_s for batch in batches]
        axes.plot(batches, throughput, label=split.name, marker=".")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)
