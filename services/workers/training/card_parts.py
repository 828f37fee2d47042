"""What the model cards of all drafters have in common: how they were made, of which data, and tables."""

from collections.abc import Iterable, Mapping, Sequence

from services.common.training.provenance import Provenance
from services.common.training.wheels import DATA_WHEELS

REPORT_NAME = "report.json"
CARD_NAME = "README.md"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown; the first column is text, the others are numbers."""
    return "\n".join([_row(titles), _row(["---", *["---:"] * (len(titles) - 1)]), *map(_row, rows)])


def how_it_was_made(provenance: Provenance) -> str:
    """Command, data with their licences, and where the rest is found."""
    train = provenance.train
    sources = (
        f"{name} ({licence}; {wheel.requirement})" for wheel in DATA_WHEELS for name, licence in wheel.sets.items()
    )
    return "\n".join(
        [
            f"    {provenance.command}",
            "",
            f"Trained on the target's own answers to {sum(train.prompts.values()):,} prompts: {train.answer_tokens:,} "
            f"tokens ({_counts(train.prompts)}), and on these prompts and {train.prompts_alone:,} without answers: "
            f"{train.prompt_tokens:,} tokens. Held-out prompts come from other items of the same sources.",
            f"Prompts from {', '.join(sources)}.",
            "No text of them is in the weights' files. Seeds, options, checksums and versions: `provenance.json`.",
        ]
    )


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _counts(prompts: Mapping[str, int]) -> str:
    return ", ".join(f"{workload} {count:,}" for workload, count in prompts.items())
