"""The pages beside a predictor: ``report.json`` for programs, the model card ``README.md`` for people."""

import json
from collections.abc import Iterable
from pathlib import Path

from services.common.training.provenance import Provenance
from services.common.training.wheels import DATA_WHEELS
from services.predictor.model_config import RemainingLengthConfig
from services.predictor.training.cut_offs import NEVER
from services.predictor.training.evaluation import HAZARD, MODEL, PROGRESS, Report
from services.predictor.training.evaluation_prompts import CONVERSATION, UNSEEN_SETS

REPORT_NAME = "report.json"
CARD_NAME = "README.md"


def write_card(folder: Path, config: RemainingLengthConfig, report: Report, provenance: Provenance) -> None:
    """Writes both pages into ``folder``."""
    (folder / REPORT_NAME).write_text(json.dumps(report.as_json(), indent=2) + "\n", encoding="utf-8")
    (folder / CARD_NAME).write_text("\n".join(_lines(config, report, provenance)), encoding="utf-8")


def _lines(config: RemainingLengthConfig, report: Report, made: Provenance) -> Iterable[str]:
    layers, thresholds = config.layer, ", ".join(map(str, config.thresholds))
    yield f"# Remaining length of {config.target}'s answers, after layer {layers}"
    yield ""
    yield f"Chances that a running answer ends within {thresholds} tokens, from the residual stream after {layers}"
    yield f"layers at its newest token: a perceptron of {config.hidden_size + 1}, {config.width}, {config.width} and"
    yield f"{len(config.thresholds)} units. `forerun up` serves it with `predictor.models`; see docs/predictor.md."
    yield ""
    yield f"Cut-offs are set for a precision of {config.precision:.2f} on validation answers. "
    yield f"Precision at least {report.precision_min:.3f}, recall {report.recall_mean:.3f} in the mean, at least"
    yield f"{report.recall_min:.3f}, over the thresholds and data sets below."
    yield ""
    yield from _accuracy_table(report)
    yield ""
    yield f"{CONVERSATION}: prompts held out of training; {' and '.join(UNSEEN_SETS)}: data sets that nothing was"
    yield f"trained on. `{HAZARD}` and `{PROGRESS}` are the recalls of the baselines at cut-offs for the same"
    yield "precision: an equal chance at every token, and a perceptron with the number of tokens alone. A threshold"
    yield "without a cut-off for that precision says nothing, hence recall 0."
    yield ""
    yield from _loss_table(report)
    yield ""
    yield "Mean cross-entropy of the chances, in nats: forecasts use the chances as they are."
    yield ""
    yield "## Data"
    yield ""
    yield f"Answers of the target to {sum(made.train.prompts.values()):,} prompts, {made.train.answer_tokens:,} tokens;"
    yield f"judged on {sum(made.held_out.prompts.values()):,} answers, {made.held_out.answer_tokens:,} tokens."
    yield f"Answers were cut at {made.answers.max_answer_tokens} tokens; what is unknown for that is left out."
    yield ""
    yield from (
        f"- {wheel.requirement}: {', '.join(f'{name} ({licence})' for name, licence in wheel.sets.items())}"
        for wheel in DATA_WHEELS
    )
    yield ""
    yield f"Made by `{made.command}`; provenance.json has seeds, options, checksums and versions."
    yield ""


def _loss_table(report: Report) -> Iterable[str]:
    yield f"| data set | {' | '.join(report.losses)} |"
    yield "|---" * (1 + len(report.losses)) + "|"
    for name in report.losses[MODEL]:
        yield f"| {name} | {' | '.join(f'{losses[name]:.4f}' for losses in report.losses.values())} |"


def _accuracy_table(report: Report) -> Iterable[str]:
    yield f"| data set | within | base rate | cut-off | precision | recall | {HAZARD} | {PROGRESS} |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, accuracies in report.accuracy[MODEL].items():
        baselines = [report.accuracy[each][name] for each in (HAZARD, PROGRESS)]
        for index, each in enumerate(accuracies):
            cut_off = report.cut_offs[MODEL][index]
            cut = "none" if cut_off == NEVER else f"{cut_off:.3f}"
            recalls = " | ".join(f"{baseline[index].recall:.3f}" for baseline in baselines)
            yield (
                f"| {name} | {report.thresholds[index]} | {each.base_rate:.3f} | {cut}"
                f" | {each.precision:.3f} | {each.recall:.3f} | {recalls} |"
            )
