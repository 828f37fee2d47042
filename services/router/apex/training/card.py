"""The pages beside a route model: report, model card and what it was made of."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from services.common.training.early_stopping import Course
from services.common.version import versions
from services.router.apex.route_net_config import RouteNetConfig
from services.router.apex.training.report import Report
from services.router.apex.training.trainer import TrainOptions

REPORT_NAME, CARD_NAME, PROVENANCE_NAME = "report.json", "README.md", "provenance.json"


@dataclass(frozen=True, slots=True)
class Source:
    """What a route model was made of."""

    command: str
    grid_sha256: str
    """Of ``requests.parquet``."""
    target_config_sha256: str
    train_prompts: int
    validation_prompts: int
    judged_prompts: int
    workloads: tuple[str, ...]


def write_pages(
    folder: Path, config: RouteNetConfig, report: Report, source: Source, options: TrainOptions, course: Course
) -> None:
    """Writes all three into ``folder``."""
    made = {
        **asdict(source),
        "training": asdict(options),
        "course": asdict(course),
        "versions": versions("torch", "transformers", "safetensors", "numpy", "pyarrow"),
    }
    _write(folder / REPORT_NAME, json.dumps(report.as_json(), indent=2))
    _write(folder / PROVENANCE_NAME, json.dumps(made, indent=2))
    _write(folder / CARD_NAME, "\n".join(_lines(config, report, source)))


def _write(path: Path, text: str) -> None:
    path.write_text(text + "\n", encoding="utf-8")


def _lines(config: RouteNetConfig, report: Report, source: Source) -> Iterable[str]:
    experts = dict.fromkeys(each.expert.value for each in config.actions)
    yield f"# Route model for {config.target}"
    yield ""
    yield "What each expert and first depth is worth for a prompt: the speedup over plain decoding and the draft tokens"
    yield f"that it wastes, for {', '.join(experts)}. `experts.model` of a router names this folder; see docs/apex.md."
    yield ""
    yield f"Learnt from {source.train_prompts:,} prompts of {', '.join(source.workloads)}; stopped by"
    yield f"{source.validation_prompts:,} others, reported on {report.prompts:,}. Speeds are those of the machine that"
    yield "recorded them, one request at a time. Licence: Apache-2.0; its table of tokens is a projection of the"
    yield "target's embedding, where its licence holds."
    yield ""
    yield "| profile | speedup | wasted per token | best fixed | its speedup | its waste | oracle | gap closed |"
    yield "|---|---|---|---|---|---|---|---|"
    for each in report.profiles:
        yield (
            f"| {each.profile} | {each.speedup:.3f} | {each.wasted:.3f} | {each.best_fixed} | "
            f"{each.best_fixed_speedup:.3f} | {each.best_fixed_wasted:.3f} | {each.oracle_speedup:.3f} | "
            f"{each.utility_gap_closed:.0%} |"
        )
    yield ""
    yield f"Median error of a predicted speedup: {report.speedup_error:.1%}. Speedups are geometric means over prompts,"
    yield "each action pinned for its whole request, as recorded."
    yield ""
    yield f"Made by `{source.command}`; {PROVENANCE_NAME} has the digests, options and versions."
