"""Residual streams at the exits for every answer, by prefilling prompt and answer through the target's first layers.

At temperature 0 the answer's tokens are the labels already, so the target's upper half never runs here. One file for
each answer shard and exit; several exits cost one pass.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from services.workers.training.answer_shards import Answer, AnswerShards, read_shard
from services.workers.training.target_model import TargetLayers

BATCH_TOKENS = 4096
STATES = "states"


def states_path(folder: Path, answers: Path, exit_layer: int) -> Path:
    """Where the streams of an answer shard at that exit lie: [tokens, hidden] float16, its answers one by one."""
    return folder / f"exit-{exit_layer:02d}" / answers.name.replace("answers", STATES)


def compute_states(
    model: Path, shards: AnswerShards, folder: Path, exits: Sequence[int], on_tokens: Callable[[int], None]
) -> None:
    """Computes what is missing.

    Args:
        on_tokens: called with the number of tokens that passed since the last call.

    Raises:
        ValueError: a value does not fit float16; the file format must change for such a model.
    """
    missing = [path for path in shards.paths() if not all(states_path(folder, path, each).is_file() for each in exits)]
    if not missing:
        return
    layers = TargetLayers(model, exits)
    for path in missing:
        streams = _shard_states(layers, [_inputs(answer) for answer in read_shard(path)], on_tokens)
        for exit_layer, parts in streams.items():
            _save(states_path(folder, path, exit_layer), torch.cat(parts))


def _inputs(answer: Answer) -> Tensor:
    """Prompt and answer without its last token, after which nothing is known."""
    return torch.cat([torch.from_numpy(answer.prompt), torch.from_numpy(answer.answer[:-1])]).long()


def _shard_states(
    layers: TargetLayers, sequences: Sequence[Tensor], on_tokens: Callable[[int], None]
) -> dict[int, list[Tensor]]:
    """By exit, the streams of ``sequences`` in their order."""
    found: dict[int, dict[int, Tensor]] = {}
    for batch in _alike(sequences):
        computed = layers.states([sequences[index] for index in batch])
        for exit_layer, streams in computed.items():
            kept = found.setdefault(exit_layer, {})
            kept.update(zip(batch, (stream.half() for stream in streams), strict=True))
        on_tokens(sum(len(sequences[index]) for index in batch))
    return {exit_layer: [kept[index] for index in range(len(sequences))] for exit_layer, kept in found.items()}


def _alike(sequences: Sequence[Tensor]) -> Iterator[list[int]]:
    """Indexes in batches of about ``BATCH_TOKENS`` padded tokens, like lengths together."""
    batch: list[int] = []
    for index in sorted(range(len(sequences)), key=lambda index: -len(sequences[index])):
        if batch and len(sequences[batch[0]]) * (len(batch) + 1) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _save(path: Path, states: Tensor) -> None:
    if not states.isfinite().all():
        raise ValueError(f"{path}: the residual stream of this model does not fit float16")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    save_file({STATES: states.contiguous()}, part)
    part.replace(path)
