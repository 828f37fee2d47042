"""Residual streams of every prompt and answer, by passing them through the target once.

The stream at an exit is what an adapter reads, the last one what it shall give: the target's own norm and head make its
distribution of it, at every position, the prompt's too. One file for each answer shard and stream; all layers cost one
pass.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from services.common.training.answer_shards import Answer, read_shard
from services.common.training.target_model import TargetStreams

BATCH_TOKENS = 4096
STATES = "states"


def states_path(folder: Path, answers: Path, layer: int) -> Path:
    """Where the streams of an answer shard after that many layers lie: [tokens, hidden] float16, one by one."""
    return folder / f"layer-{layer:02d}" / answers.parent.name / answers.name


def compute_states(
    model: Path, shards: Sequence[Path], folder: Path, layers: Sequence[int], on_tokens: Callable[[int], None]
) -> None:
    """Computes what is missing.

    Args:
        shards: of answers.
        layers: numbers of layers before a stream.
        on_tokens: called with the number of tokens that passed since the last call.

    Raises:
        ValueError: a value does not fit float16; the file format must change for such a model.
    """
    missing = [path for path in shards if not all(states_path(folder, path, each).is_file() for each in layers)]
    if not missing:
        return
    target = TargetStreams(model, layers)
    for path in missing:
        streams = _shard_states(target, [_inputs(answer) for answer in read_shard(path)], on_tokens)
        for layer, parts in streams.items():
            _save(states_path(folder, path, layer), torch.cat(parts))


def _inputs(answer: Answer) -> Tensor:
    """Prompt and answer without their last token, after which nothing is known."""
    return torch.cat([torch.from_numpy(answer.prompt), torch.from_numpy(answer.answer)])[:-1].long()


def _shard_states(
    target: TargetStreams, sequences: Sequence[Tensor], on_tokens: Callable[[int], None]
) -> dict[int, list[Tensor]]:
    """By layer, the streams of ``sequences`` in their order."""
    found: dict[int, dict[int, Tensor]] = {}
    for batch in alike(sequences):
        computed = target.streams([sequences[index] for index in batch])
        for layer, streams in computed.items():
            kept = found.setdefault(layer, {})
            kept.update(zip(batch, (stream.half() for stream in streams), strict=True))
        on_tokens(sum(len(sequences[index]) for index in batch))
    return {layer: [kept[index] for index in range(len(sequences))] for layer, kept in found.items()}


def alike(sequences: Sequence[Tensor]) -> Iterator[list[int]]:
    """Indexes of ``sequences`` in batches of about ``BATCH_TOKENS`` padded tokens, like lengths together."""
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
