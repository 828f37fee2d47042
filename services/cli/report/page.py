"""Puts the page together: one HTML file that needs nothing else."""

from collections.abc import Mapping
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from services.cli.report.curves import courses, survivals
from services.cli.report.plots import course_panels, speed_planes, survival_panels
from services.cli.report.speeds import ORACLE, Speed, speeds
from services.common.errors import ConfigError
from services.router.apex.training.request_table import RequestRow
from services.scheduler.apex.block_table import BlockTable
from services.scheduler.apex.depth_net import DepthNet


def report_page(title: str, rows: list[RequestRow], blocks: BlockTable, net: DepthNet | None) -> str:
    """The HTML.

    Args:
        title: for people.
        rows: requests of a grid.
        blocks: of these requests, or of others that were recorded.
        net: a depth model to compare with; None: none.

    Raises:
        ConfigError: there is nothing to compare, or nothing was drafted.
    """
    found, survived = speeds(rows), survivals(blocks, net)
    if not found:
        raise ConfigError("the grid holds no plain requests to compare with; go on with `forerun bench grid`")
    if not survived:
        raise ConfigError("the block records hold no drafts; record requests with experts")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8"))
    prompts = len({row.prompt_id for row in rows})
    return template.render(
        title=title,
        summary=f"{len(rows):,} requests of {prompts:,} prompts; {len(blocks):,} verified blocks.",
        planes=speed_planes(found),
        speeds=found,
        best={workload: _fastest(by_setting) for workload, by_setting in found.items()},
        survival=survival_panels(survived),
        has_model=net is not None,
        course=course_panels(courses(blocks)),
    )


def _fastest(by_setting: Mapping[str, Speed]) -> str:
    return max((name for name in by_setting if name != ORACLE), key=lambda name: by_setting[name].speedup)
