"""All of ``forerun train router`` after its options are read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.common.errors import ConfigError
from services.common.file_digest import file_digest
from services.common.target_weights import TargetWeights
from services.common.training.chat_rendering import prompt_renderer
from services.common.training.progress import Listener
from services.common.training.provenance import config_sha256
from services.common.training.target_model import target_config
from services.common.types import SamplingOptions
from services.common.workloads.prompt import WorkloadPrompt
from services.router.apex.prompt_features import Floats, prompt_features
from services.router.apex.route_net import save_route_net
from services.router.apex.route_net_config import RouteNetConfig
from services.router.apex.training.card import Source, write_pages
from services.router.apex.training.examples import RouteExamples, actions_of, features_of, split
from services.router.apex.training.report import Report, evaluate
from services.router.apex.training.request_table import RequestRow, read_requests
from services.router.apex.training.token_table import token_table
from services.router.apex.training.trainer import Lesson, TrainOptions, train


@dataclass(frozen=True, slots=True)
class Target:
    """The model whose requests are routed."""

    name: str
    folder: Path


def train_route_model(
    requests: Path,
    target: Target,
    prompts: Iterable[WorkloadPrompt],
    out: Path,
    options: TrainOptions,
    command: str,
    listen: Listener,
) -> Report:
    """Trains from a grid's requests and writes the model with its pages into ``out``.

    Args:
        requests: ``requests.parquet`` of the grid.
        target: the model that the grid asked.
        prompts: of the workloads; those of the grid must be among them.
        out: folder, which need not be there.
        options: how.
        command: the command line, for people who want to make it again.
        listen: hears of the steps.

    Raises:
        ConfigError: the grid cannot be learnt from.
    """
    listen.step("read the grid")
    rows = read_requests(requests)
    if not rows:
        raise ConfigError(f"{requests}: there is nothing; record it with `forerun bench grid`")
    actions, parts = actions_of(rows), split(rows)
    examples = [RouteExamples.of(each, actions) for each in parts]
    if not all(map(len, examples)):
        raise ConfigError(f"{requests}: too few prompts were asked both plainly and with drafts; record more")
    token_ids = _token_ids(target.folder, prompts, rows)
    table = token_table(TargetWeights(str(target.folder)).embedding(), token_ids.values(), options.embedding_width)
    features = _features(rows, token_ids, table)
    by_part = [features_of(each, features) for each in examples]
    lessons = [Lesson.of(x, each.outcomes, each.known) for x, each in zip(by_part, examples, strict=True)]
    listen.step("train", options.epochs)
    lesson, validation, _ = lessons
    net, course = train(
        lesson, validation, options, lambda epoch, loss: listen.reach(epoch, f"validation loss {loss:.4f}")
    )
    config = RouteNetConfig(
        target=target.name,
        vocab_size=len(table),
        embedding_width=options.embedding_width,
        width=options.width,
        actions=actions,
    )
    saved = save_route_net(out, config, {**net.tensors(), "embedding": table})
    report = evaluate(saved, examples[0], examples[2], by_part[2])
    source = Source(
        command=command,
        grid_sha256=file_digest(requests),
        target_config_sha256=config_sha256(target.folder),
        train_prompts=len(examples[0]),
        validation_prompts=len(examples[1]),
        judged_prompts=len(examples[2]),
        workloads=tuple(sorted({row.workload for row in rows})),
    )
    write_pages(out, config, report, source, options, course)
    return report


def _token_ids(model: Path, prompts: Iterable[WorkloadPrompt], rows: Sequence[RequestRow]) -> dict[str, list[int]]:
    """As the target reads them, by prompt id."""
    longest = target_config(model).max_position_embeddings
    render, wanted = prompt_renderer(model, longest), {row.prompt_id for row in rows}
    rendered = {each.id: render(each) for each in prompts if each.id in wanted}
    if missing := wanted - rendered.keys():
        raise ConfigError(
            f"the grid has prompts that the workloads have no more, as {min(missing)}; record it again in a new folder"
        )
    # A prompt that was answered fits the context.
    return {prompt: ids for prompt, ids in rendered.items() if ids}


def _features(
    rows: Sequence[RequestRow], token_ids: Mapping[str, list[int]], table: NDArray[np.float16]
) -> dict[str, Floats]:
    """By prompt id; grids ask greedily."""
    asked = {row.prompt_id: row.max_tokens for row in rows}
    sampling = SamplingOptions(temperature=0.0)
    return {prompt: prompt_features(ids, sampling, asked[prompt], table) for prompt, ids in token_ids.items()}
