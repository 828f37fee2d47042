"""``forerun train eagle3`` and ``forerun train draft``: drafters in the formats that vLLM loads."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from services.cli.console import output_console
from services.cli.errors import reports_errors
from services.cli.train_options import (
    AnswerTokensOption,
    BatchOption,
    CacheOption,
    DepthOption,
    EpochsOption,
    LearningRateOption,
    ModelOption,
    PromptsOption,
    PromptTokensOption,
    SeedOption,
    SoftShareOption,
    StepOption,
    checkpoint_folder,
    command_line,
    download,
    training_folder,
)
from services.cli.train_progress import train_progress

if TYPE_CHECKING:
    from services.workers.training.chains import ChainReport
    from services.workers.training.drafter_training import DrafterTraining


@reports_errors
def train_eagle3(  # noqa: PLR0913  (one parameter an option)
    model: ModelOption,
    out: Annotated[Path, typer.Option(help="Folder; eagle3 is made in it.")],
    answer_tokens: AnswerTokensOption = 1_000_000,
    prompt_tokens: PromptTokensOption = 500_000,
    draft_vocab: Annotated[int, typer.Option(min=1, help="Token ids that can be drafted, the most used ones.")] = 8192,
    unroll: Annotated[int, typer.Option(min=1, help="Drafts in a row that it is trained to make.")] = 4,
    epochs: EpochsOption = 3,
    learning_rate: LearningRateOption = 5e-4,
    step_tokens: StepOption = 2048,
    soft_share: SoftShareOption = 1.0,
    depth: DepthOption = 4,
    seed: SeedOption = 0,
    prompts: PromptsOption = 14_000,
    batch: BatchOption = 64,
    cache: CacheOption = None,
) -> None:
    """Train an EAGLE-3 head for a model.

    A replica drafts several tokens ahead with it and verifies them in one step (`experts.drafter` in the
    configuration); plain vLLM loads it too. It learns from the model's own answers, as `forerun train adapter` does:
    they are kept under CACHE/training/MODEL, so the same command goes on where it was interrupted.

    \b
    Examples:
      forerun train eagle3 --model smollm2-135m --out models/smollm2-135m
      forerun train eagle3 --model smollm2-135m --out /tmp/trial --answer-tokens 20000 --prompt-tokens 0 --epochs 1
    """
    location = checkpoint_folder(model, cache)
    # Here, not above: they load torch, which takes seconds that --help should not.
    from services.common.training.answers import AnswerOptions  # noqa: PLC0415
    from services.common.training.vllm_target import VllmTarget  # noqa: PLC0415
    from services.workers.training.eagle3.eagle3_training import Eagle3Options, Eagle3Training  # noqa: PLC0415
    from services.workers.training.eagle3.student import Eagle3TrainOptions  # noqa: PLC0415

    options = Eagle3Options(
        model=location,
        name=location.name,
        draft_vocab_size=draft_vocab,
        prompts=prompts,
        prompt_seed=seed,
        answering=AnswerOptions(batch=batch),
        answer_tokens=answer_tokens,
        prompt_tokens=prompt_tokens,
    )
    training = Eagle3TrainOptions(
        epochs=epochs,
        batch_tokens=step_tokens,
        learning_rate=learning_rate,
        soft_share=soft_share,
        seed=seed,
        unroll=unroll,
    )
    folder = training_folder(cache)
    with train_progress() as listen:
        steps = Eagle3Training(options, VllmTarget, folder / location.name, listen)
        prepare(steps, folder)
        report = steps.train(out / "eagle3", training, depth, command_line())
    _show(out / "eagle3", report)


@reports_errors
def train_draft(  # noqa: PLR0913  (one parameter an option)
    model: ModelOption,
    out: Annotated[Path, typer.Option(help="Folder; draft-LAYERS is made in it.")],
    layers: Annotated[int, typer.Option(min=1, help="Of the model's layers that the draft starts with.")] = 4,
    answer_tokens: AnswerTokensOption = 1_000_000,
    prompt_tokens: PromptTokensOption = 500_000,
    epochs: EpochsOption = 3,
    learning_rate: LearningRateOption = 5e-4,
    step_tokens: StepOption = 2048,
    soft_share: SoftShareOption = 1.0,
    depth: DepthOption = 4,
    seed: SeedOption = 0,
    prompts: PromptsOption = 14_000,
    batch: BatchOption = 64,
    cache: CacheOption = None,
) -> None:
    """Train a small draft model for a model: some of its own layers, taught to answer as all of them do.

    A replica drafts several tokens ahead with it and verifies them in one step (`experts.drafter` in the
    configuration); plain vLLM loads it too. It learns from the model's own answers, as `forerun train adapter` does:
    they are kept under CACHE/training/MODEL, so the same command goes on where it was interrupted.

    \b
    Examples:
      forerun train draft --model smollm2-135m --out models/smollm2-135m
      forerun train draft --model smollm2-135m --layers 2 --out /tmp/trial --answer-tokens 20000 --epochs 1
    """
    location = checkpoint_folder(model, cache)
    # Here, not above: they load torch, which takes seconds that --help should not.
    from services.common.training.answers import AnswerOptions  # noqa: PLC0415
    from services.common.training.step_trainer import TrainOptions  # noqa: PLC0415
    from services.common.training.vllm_target import VllmTarget  # noqa: PLC0415
    from services.workers.training.draft_model.draft_training import (  # noqa: PLC0415
        DraftModelOptions,
        DraftModelTraining,
    )

    options = DraftModelOptions(
        model=location,
        name=location.name,
        layers=layers,
        prompts=prompts,
        prompt_seed=seed,
        answering=AnswerOptions(batch=batch),
        answer_tokens=answer_tokens,
        prompt_tokens=prompt_tokens,
    )
    training = TrainOptions(
        epochs=epochs, batch_tokens=step_tokens, learning_rate=learning_rate, soft_share=soft_share, seed=seed
    )
    folder, made = training_folder(cache), out / f"draft-{layers}"
    with train_progress() as listen:
        steps = DraftModelTraining(options, VllmTarget, folder / location.name, listen)
        prepare(steps, folder)
        report = steps.train(made, training, depth, command_line())
    _show(made, report)


def prepare(steps: "DrafterTraining", folder: Path) -> None:
    """The steps that all drafters share; ``folder`` keeps the wheels."""
    steps.prepare_prompts(folder / "wheels", download)
    steps.generate_answers()
    steps.take_prompts_alone()
    steps.compute_states()


def _show(out: Path, report: "ChainReport") -> None:
    depth = len(report.overall.accepted)
    table = Table("WORKLOAD", "MEAN ACCEPTED", *(f"DRAFT {index + 1}" for index in range(depth)), box=None)
    for name, each in (("all", report.overall), *report.by_workload.items()):
        table.add_row(name, f"{each.mean_accepted:.3f}", *(f"{share:.3f}" for share in each.accuracy))
    console = output_console()
    console.print(table)
    console.print(f"Written to {out}.", highlight=False)
