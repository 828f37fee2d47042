"""The pages beside an adapter: ``report.json`` for programs, the model card ``README.md`` for people."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from services.common.training.provenance import Provenance
from services.workers.draft_adapter.config import DraftAdapterConfig
from services.workers.draft_adapter.files import weight_shapes
from services.workers.training.adapter.agreement import CONFIDENT_SHARE, Agreement, AgreementReport
from services.workers.training.card_parts import CARD_NAME, REPORT_NAME, how_it_was_made, table


@dataclass(frozen=True, slots=True)
class Reports:
    """Of the drafts as the first stage makes them, and of the adapter's own without lookups in the request's text."""

    served: AgreementReport
    adapter_alone: AgreementReport

    def as_json(self) -> dict[str, Any]:
        """Plain values: the served drafts' report, the adapter's under ``adapter_alone``."""
        return {**self.served.as_json(), "adapter_alone": self.adapter_alone.as_json()}


def write_card(folder: Path, config: DraftAdapterConfig, reports: Reports, provenance: Provenance) -> None:
    """Writes both pages into ``folder``."""
    (folder / REPORT_NAME).write_text(json.dumps(reports.as_json(), indent=2) + "\n", encoding="utf-8")
    (folder / CARD_NAME).write_text(card(config, reports, provenance), encoding="utf-8")


def card(config: DraftAdapterConfig, reports: Reports, provenance: Provenance) -> str:
    """The model card, Markdown."""
    return (
        "\n\n".join(
            [
                f"# Draft adapter: {config.target}, exit after layer {config.exit_layer} of {config.target_layers}",
                _what(config),
                "## Agreement with the target",
                _agreement(config, reports, provenance),
                *_tables(reports.served),
                "## How it was made",
                how_it_was_made(provenance),
                "## Limits",
                "Drafts decide how often the next pass is useful, never what is answered: each one is verified by the "
                "target. The training prompts are English; elsewhere fewer drafts agree. The adapter fits the very "
                "weights it was trained with; `config.json` is checked against the model's when it is loaded.",
            ]
        )
        + "\n"
    )


def _what(config: DraftAdapterConfig) -> str:
    parameters = sum(prod(shape) for name, shape in weight_shapes(config).items() if name != "d2t")
    return (
        f"Drafts the next token from the residual stream after layer {config.exit_layer}: a projection, one causal "
        f"attention layer, then the target's own final norm and LM head, reduced to {config.draft_vocab_size:,} of "
        f"{config.vocab_size:,} tokens. {parameters / 1e6:.2f} million weights; norm and head are read from the "
        "target's checkpoint. For greedy requests the first stage also looks up what followed the newest tokens when "
        "they stood in the request's text before, and drafts that where such matches are right more often than the "
        "adapter is sure. Licence: Apache-2.0."
    )


def _agreement(config: DraftAdapterConfig, reports: Reports, provenance: Provenance) -> str:
    report, alone = reports.served, reports.adapter_alone
    lines = [
        f"Measured on {sum(provenance.held_out.prompts.values()):,} held-out answers; a token outside the draft "
        "vocabulary counts as a miss. At temperature 0:",
        "",
        f"- all drafts: **{report.overall.share:.3f}** ({report.overall.positions:,} positions)",
        f"- the most confident {CONFIDENT_SHARE:.0%}: **{report.confident.share:.3f}**",
        f"- the adapter alone, without lookups: {alone.overall.share:.3f} overall, {alone.confident.share:.3f} of the "
        f"most confident {CONFIDENT_SHARE:.0%}",
        f"- tokens within the draft vocabulary of {config.draft_vocab_size:,}: {report.coverage:.3f}",
    ]
    if report.sampled is not None:
        lines.append(
            f"- answers sampled at temperature 1, most likely draft against the sampled token: "
            f"{report.sampled.share:.3f} ({report.sampled.positions:,} positions)"
        )
    return "\n".join(lines)


def _tables(report: AgreementReport) -> list[str]:
    return [
        _table("Workload", report.by_workload.items()),
        _table("Position in the answer", report.by_position.items()),
        _table("Confidence at least", ((f"{lowest:.3f}", part) for lowest, part in report.by_confidence)),
    ]


def _table(title: str, rows: Iterable[tuple[str, Agreement]]) -> str:
    body = ((name, f"{part.share:.3f}", f"{part.positions:,}") for name, part in rows)
    return table((title, "agreement", "positions"), body)
