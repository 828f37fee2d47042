"""Where a draft model starts: with a linear map in the place of the layers that were left out.

Behind a kept layer the residual stream is not yet what the next kept one has learnt to read. So each layer's MLP gets
as many units as the stream is wide, which add the ridge regression of what is missing: of the target's stream before
the next kept layer, and behind the last one of its last stream. Layer by layer, each on what the ones before it have
made of the text (own derivation; layers that are merely left out make a model that says nothing at all).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from services.common.training.states import alike
from services.common.training.target_model import TargetStreams, target_config
from services.workers.training.linear_units import fit_linear_units

FIT_TOKENS: Final = 30_000
_LEAST_SPREAD: Final = 1e-4


def widen(draft: Any) -> None:
    """Adds one unit for each coordinate of the stream to every MLP; they do nothing yet."""
    units = draft.config.hidden_size
    for layer in draft.get_decoder().layers:
        mlp = layer.mlp
        for name in ("gate_proj", "up_proj"):
            _replace(mlp, name, torch.cat([getattr(mlp, name).weight, torch.zeros(units, units)]))
        _replace(mlp, "down_proj", torch.cat([mlp.down_proj.weight, torch.zeros(units, units)], dim=1))
    draft.config.intermediate_size += units


def fit_bridges(draft: Any, target: Path, layers: Sequence[int], sequences: Sequence[Tensor]) -> None:
    """Sets those units.

    Args:
        draft: of ``cut_model``, widened.
        target: its folder.
        layers: indexes of the target's layers that the draft has, ascending.
        sequences: token ids to learn from, about ``FIT_TOKENS`` in all.
    """
    decoder, width = draft.get_decoder(), draft.config.hidden_size
    goals = [*layers[1:], int(target_config(target).num_hidden_layers)]
    batches = [[sequences[index] for index in batch] for batch in alike(sequences)]
    streams = _target_streams(target, sorted(set(goals)), batches)
    units = torch.arange(draft.config.intermediate_size - width, draft.config.intermediate_size)
    for index, goal in enumerate(goals):
        mlp = decoder.layers[index].mlp
        inputs, outputs = _run(decoder, index, batches)
        with torch.no_grad():
            # ``outputs`` have what the other units add; these are still 0.
            wanted = streams[goal] - outputs + mlp(inputs)
        fit_linear_units(mlp, units, 1 / inputs.std(0).clamp_min(_LEAST_SPREAD), inputs, wanted)


def choose_sequences(sequences: Sequence[Tensor]) -> list[Tensor]:
    """The first ones, of about ``FIT_TOKENS`` tokens."""
    chosen, room = [], FIT_TOKENS
    for each in sequences:
        if room <= 0:
            break
        chosen.append(each)
        room -= len(each)
    return chosen


def _run(decoder: Any, index: int, batches: Sequence[Sequence[Tensor]]) -> tuple[Tensor, Tensor]:
    """The MLP's inputs and the output of layer ``index``, at every position but the first of each sequence."""
    layer, seen = decoder.layers[index], {"inputs": [], "outputs": []}  # type: ignore[var-annotated]

    def keep(name: str, value: Any) -> None:
        seen[name].append(value[0] if isinstance(value, tuple) else value)

    hooks = [
        layer.post_attention_layernorm.register_forward_hook(lambda _, __, output: keep("inputs", output)),
        layer.register_forward_hook(lambda _, __, output: keep("outputs", output)),
    ]
    try:
        with torch.no_grad():
            for batch in batches:
                # Padded on the right and causal: no sequence sees its padding, so no mask is needed.
                decoder(input_ids=pad_sequence(list(batch), batch_first=True), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    inputs, outputs = (
        torch.cat([rows for values, batch in zip(each, batches, strict=True) for rows in _real(values, batch)])
        for each in (seen["inputs"], seen["outputs"])
    )
    return inputs, outputs


def _target_streams(target: Path, layers: Sequence[int], batches: Sequence[Sequence[Tensor]]) -> dict[int, Tensor]:
    streams = TargetStreams(target, layers)
    found: dict[int, list[Tensor]] = {layer: [] for layer in layers}
    for batch in batches:
        for layer, each in streams.streams(batch).items():
            found[layer] += [rows[1:] for rows in each]
    return {layer: torch.cat(rows) for layer, rows in found.items()}


def _real(values: Tensor, batch: Sequence[Tensor]) -> Iterator[Tensor]:
    """Rows that are no padding, and not the first of a sequence, whose stream is like no other."""
    for row, sequence in zip(values, batch, strict=True):
        yield row[1 : len(sequence)]


def _replace(mlp: Any, name: str, weight: Tensor) -> None:
    outputs, inputs = weight.shape
    linear = nn.Linear(inputs, outputs, bias=False)
    linear.weight.data.copy_(weight.detach())
    setattr(mlp, name, linear)
