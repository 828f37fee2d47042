"""What the train commands share: their options, and where models and kept work are found."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from services.cli.errors import CliError
from services.cli.model_progress import store_progress
from services.cli.model_resolve import is_hugging_face_id, resolve_model
from services.cli.model_store import ModelStore
from services.cli.paths import cache_dir
from services.cli.pip_download import download_wheel

ModelOption = Annotated[str, typer.Option(help="A name that `forerun models list` shows, or a checkpoint's folder.")]
AnswerTokensOption = Annotated[int, typer.Option(min=1, help="Tokens of the model's own answers to train on.")]
PromptTokensOption = Annotated[
    int, typer.Option(min=0, help="Tokens of prompts without answers to train on as well; they cost no decoding.")
]
EpochsOption = Annotated[int, typer.Option(min=1, help="Passes over the data.")]
LearningRateOption = Annotated[float, typer.Option(min=0.0, help="At its peak.")]
StepOption = Annotated[
    int, typer.Option("--step-tokens", min=1, help="Tokens, of prompts too, that one step of training learns from.")
]
SoftShareOption = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Of the loss on the model's distribution; the rest on its likeliest.")
]
SeedOption = Annotated[int, typer.Option(help="Of prompts, order and weights.")]
PromptsOption = Annotated[int, typer.Option(min=1, help="Prompts to prepare; too many do no harm.")]
BatchOption = Annotated[int, typer.Option(min=1, help="Prompts that the model answers at once.")]
DepthOption = Annotated[int, typer.Option(min=1, help="Draft tokens in a row that the report counts.")]
CacheOption = Annotated[
    Path | None, typer.Option("--cache-dir", help="Default: $FORERUN_CACHE, else forerun in your cache folder.")
]


def checkpoint_folder(model: str, cache: Path | None) -> Path:
    """The model's folder.

    Raises:
        CliError: a Hugging Face id that is not here.
    """
    store = ModelStore(cache_dir(cache))
    with store_progress(model) as stored:
        location = resolve_model(model, store, stored)
    if is_hugging_face_id(location) and not Path(location).is_dir():
        raise CliError(
            f"--model {model}: fetch it first with `forerun models get {model}` and give the folder it prints"
        )
    return Path(location)


def training_folder(cache: Path | None) -> Path:
    """Where each model's work folder lies, and the wheels."""
    return cache_dir(cache) / "training"


def download(requirement: str, folder: Path) -> Path:
    """A wheel, silently."""
    return download_wheel(requirement, folder, lambda _: None)


def command_line() -> str:
    """As it was typed."""
    return shlex.join(["forerun", *sys.argv[1:]])
