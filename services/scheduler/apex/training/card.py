"""The pages beside a depth model: report, model card and what it was made of."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from services.common.file_digest import file_digest
from services.common.training.early_stopping import Course
from services.common.version import versions
from services.scheduler.apex.block_table import BlockTable
from services.scheduler.apex.depth_net_config import DepthNetConfig
from services.scheduler.apex.training.report import Report
from services.scheduler.apex.training.trainer import TrainOptions

REPORT_NAME, CARD_NAME, PROVENANCE_NAME = "report.json", "README.md", "provenance.json"
_PACKAGES = ("torch", "safetensors", "numpy", "pyarrow")


@dataclass(frozen=True, slots=True)
class Source:
    """What a depth model was made of."""

    command: str
    traces: dict[str, str]
    """SHA-256 of each file, by name."""
    train_blocks: int
    validation_blocks: int
    judged_blocks: int
    prompts: int
    workloads: tuple[str, ...]

    @classmethod
    def of(cls, command: str, folder: Path, parts: tuple[BlockTable, BlockTable, BlockTable]) -> "Source":
        """``parts``: to learn from, to validate on, to report on."""
        train, validation, judged = parts
        return cls(
            command,
            {path.name: file_digest(path) for path in sorted(folder.glob("*.parquet"))},
            len(train),
            len(validation),
            len(judged),
            len({prompt for part in parts for prompt in part.prompt_id}),
            tuple(sorted({workload for part in parts for workload in part.workload})),
        )


def write_pages(
    folder: Path, config: DepthNetConfig, report: Report, source: Source, options: TrainOptions, course: Course
) -> None:
    """Writes all three into ``folder``."""
    made = {
        **asdict(source),
        "training": asdict(options),
        "course": asdict(course),
        "versions": versions(*_PACKAGES),
    }
    _write(folder / REPORT_NAME, json.dumps(report.as_json(), indent=2))
    _write(folder / PROVENANCE_NAME, json.dumps(made, indent=2))
    _write(folder / CARD_NAME, "\n".join(_lines(config, report, source, course)))


def _write(path: Path, text: str) -> None:
    path.write_text(text + "\n", encoding="utf-8")


def _lines(config: DepthNetConfig, report: Report, source: Source, course: Course) -> Iterable[str]:
    yield "# Depth model"
    yield ""
    yield "Hazards of rejection by draft position, cost, throughput and utility of a request's next block, for the"
    yield f"experts {', '.join(config.trained_on)} and the profile {config.profile}. `experts.depth_model` of a replica"
    yield "names this folder; see docs/apex.md."
    yield ""
    yield f"Learnt from {source.train_blocks:,} blocks, reported on {report.blocks:,} of other prompts; "
    yield f"{source.prompts:,} prompts of {', '.join(source.workloads)}. Epoch {course.best_epoch} of {course.epochs}."
    if config.ablations:
        yield f"Trained without: {', '.join(config.ablations)}. For comparisons only."
    yield ""
    yield "| | model | constant hazards |"
    yield "|---|---|---|"
    yield f"| survival loss, nats a block | {report.survival_loss:.4f} | {report.baseline_survival_loss:.4f} |"
    yield f"| error of the accepted length, tokens | {report.length_error:.3f} | {report.baseline_length_error:.3f} |"
    yield ""
    yield f"Median error of a block's seconds {report.cost_error:.1%}, of its tokens a second"
    yield f"{report.throughput_error:.1%}. The best observed depth has the highest predicted utility in"
    yield f"{report.best_depth_chosen:.1%} of the comparisons."
    yield ""
    yield "| expert | depth | blocks | expected accepted | observed |"
    yield "|---|---|---|---|---|"
    for each in report.calibration:
        yield f"| {each.expert} | {each.depth} | {each.blocks:,} | {each.expected:.3f} | {each.observed:.3f} |"
    yield ""
    yield f"Made by `{source.command}`; {PROVENANCE_NAME} has traces, options and versions."
