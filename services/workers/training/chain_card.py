"""The pages beside a drafter that is judged by its chains: ``report.json`` for programs, ``README.md`` for people."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.common.training.provenance import Provenance
from services.workers.training.card_parts import CARD_NAME, REPORT_NAME, how_it_was_made, table
from services.workers.training.chains import ChainReport, Reach


@dataclass(frozen=True, slots=True)
class Drafter:
    """What is said about one, beside its figures."""

    title: str
    about: str
    """What it is, how large, how it is used, its licence."""
    method: str
    """vLLM's word for it in ``--speculative-config``."""
    limits: str
    facts: dict[str, Any]
    """More for ``report.json``."""


def write_chain_card(folder: Path, drafter: Drafter, report: ChainReport, provenance: Provenance) -> None:
    """Writes both pages into ``folder``."""
    values = {**report.as_json(), **drafter.facts}
    (folder / REPORT_NAME).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    (folder / CARD_NAME).write_text(_card(drafter, report, provenance), encoding="utf-8")


def _card(drafter: Drafter, report: ChainReport, provenance: Provenance) -> str:
    depth = len(report.overall.accepted)
    # The file's own folder, as the reader has it, is not known here.
    speculative = json.dumps({"method": drafter.method, "model": "THIS FOLDER", "num_speculative_tokens": depth})
    parts = [
        f"# {drafter.title}",
        drafter.about,
        f"With vLLM: `--speculative-config '{speculative}'`. With Forerun: `experts.drafter` in the configuration.",
        "## Accuracy",
        _reach(report.overall, provenance),
        _tables(report),
        "## How it was made",
        how_it_was_made(provenance),
        "## Limits",
        drafter.limits,
    ]
    return "\n\n".join(parts) + "\n"


def _reach(overall: Reach, provenance: Provenance) -> str:
    return (
        f"Measured on the greedy ones of {sum(provenance.held_out.prompts.values()):,} held-out answers: "
        f"{overall.chains:,} chains of {len(overall.accepted)} drafts, one after every token of an answer, each up to "
        "the first draft that is not the target's own token. Mean accepted drafts of a chain: "
        f"**{overall.mean_accepted:.3f}**."
    )


def _tables(report: ChainReport) -> str:
    depth = len(report.overall.accepted)
    accuracies = table(
        ("Draft", "right where all before it were", "it and all before it right"),
        (
            (str(index + 1), f"{accuracy:.3f}", f"{accepted:.3f}")
            for index, (accuracy, accepted) in enumerate(
                zip(report.overall.accuracy, report.overall.accepted, strict=True)
            )
        ),
    )
    workloads = table(
        ("Workload", "mean accepted", *(f"draft {index + 1}" for index in range(depth)), "chains"),
        (
            (name, f"{each.mean_accepted:.3f}", *(f"{share:.3f}" for share in each.accuracy), f"{each.chains:,}")
            for name, each in report.by_workload.items()
        ),
    )
    return f"{accuracies}\n\n{workloads}"
