"""Residual streams in the middle of a stage's layers, for what is learnt from them: drafts and remaining lengths.

Relies on (vLLM 0.32, model runner V1): a model with ``set_aux_hidden_state_layers`` (vLLM's way for EAGLE-3, which
Llama- and Qwen-type models have) adds the streams after those layers to what it returns, by name on a stage that hands
on, as a list beside the hidden states on the last; a forward hook on the model runs inside the step's forward context,
and may return what the runner gets in place of the model's output.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import structlog
import torch
from vllm.config import VllmConfig
from vllm.forward_context import ForwardContext, get_forward_context
from vllm.model_executor.models.interfaces import EagleModelMixin
from vllm.sequence import IntermediateTensors
from vllm.v1.core.sched.output import SchedulerOutput

from services.common.errors import ConfigError
from services.workers.draft_adapter.config import DraftAdapterConfig
from services.workers.place import StagePlace

_log = structlog.get_logger(__name__)


class StreamTap:
    """Keeps what the newest step's streams were after some layers of one stage."""

    def __init__(self, runner: Any, layers: Collection[int]) -> None:
        """To be made after the weights are loaded and before anything is compiled; at most one a model.

        Args:
            runner: vLLM's model runner.
            layers: numbers of layers before each stream, all of them on this stage.

        Raises:
            ConfigError: the model has no such streams.
        """
        if not hasattr(runner.model, "set_aux_hidden_state_layers"):
            raise ConfigError(
                f"model: {type(runner.model).__name__} does not give the streams between its layers; drafting and "
                "length prediction are for Llama- and Qwen-type models"
            )
        self.layers = tuple(sorted(set(layers)))
        self.streams: dict[int, torch.Tensor] = {}
        """By number of layers, [tokens, hidden]."""
        self.positions = torch.empty(0)
        """Of the step's tokens, [tokens]."""
        self.context: ForwardContext | None = None
        """Of the step: attention layers can be run in it once more."""
        runner.model.set_aux_hidden_state_layers(self.layers)
        runner.model.register_forward_hook(self._remember, with_kwargs=True)

    def _remember(self, _module: Any, _arguments: Any, keywords: dict[str, Any], output: Any) -> Any:
        self.context = get_forward_context()
        self.positions = keywords["positions"]
        # Taken out of the output: neither the next stage nor the runner has a use for them.
        if isinstance(output, IntermediateTensors):
            names = [f"{EagleModelMixin.AUX_HIDDEN_STATE_KEY}{index}" for index in range(len(self.layers))]
            taken, left = [output.tensors.pop(name) for name in names], output
        else:
            left, taken = output
        self.streams = dict(zip(self.layers, taken, strict=True))
        return left


def make_tap(config: VllmConfig, runner: Any, place: StagePlace) -> StreamTap | None:
    """What a stage needs for its drafts and for the predictor of remaining lengths; None: nothing.

    Raises:
        ConfigError: the stage is to draft and cannot.
    """
    start, end = config.model_config.get_layers_start_end_indices(config.parallel_config)
    layers = set()
    if place.draft_adapter and place.is_first:
        exit_layer = DraftAdapterConfig.read(Path(place.draft_adapter)).exit_layer
        if exit_layer > end:
            raise ConfigError(
                f"layer_partition: the first stage has {end} layers, the draft adapter in {place.draft_adapter} reads "
                f"after {exit_layer}; give the first stage as many or more, or use another adapter"
            )
        layers.add(exit_layer)
    drafts = bool(layers)
    if start < place.predictor_layer <= end:
        layers.add(place.predictor_layer)
    if not layers:
        return None
    try:
        return StreamTap(runner, layers)
    except ConfigError as error:
        if drafts:
            raise
        # Learned parts fail open: the admission forecasts without.
        _log.warning("remaining lengths are not predicted", reason=str(error))
        return None


def rows_of(batch: Any, plan: SchedulerOutput, wanted: Collection[str]) -> tuple[list[str], list[int], list[int]]:
    """Wanted requests of a step that has run, their rows in the runner's batch, and each one's last token in it."""
    ids, rows, ends, end = [], [], [], 0
    for row, request_id in enumerate(batch.req_ids):
        end += plan.num_scheduled_tokens[request_id]
        if request_id in wanted:
            ids.append(request_id)
            rows.append(row)
            ends.append(end - 1)
    return ids, rows, ends
