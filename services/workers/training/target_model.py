"""The target's first layers, in float32: what the adapter in training reads from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging


class TargetLayers:
    """The target's first layers, as a function from token ids to the residual streams at some exits."""

    def __init__(self, model: Path, exits: Sequence[int]) -> None:
        """Loads the layers before the deepest of ``exits`` (layers before the exit, as ``exit_layer``)."""
        self._decoder = _first_layers(model, max(exits)).get_decoder()
        # The deepest exit is wanted before the final norm, like the others.
        self._decoder.norm = nn.Identity()
        self._exits = tuple(exits)

    def states(self, sequences: Sequence[Tensor]) -> dict[int, list[Tensor]]:
        """The residual stream at each exit.

        Args:
            sequences: token ids of each sequence, of any lengths; alike lengths waste least.

        Returns:
            By exit, one [length, hidden] tensor a sequence.
        """
        # Padded on the right and causal: no sequence sees its padding, so no mask is needed.
        padded = nn.utils.rnn.pad_sequence(list(sequences), batch_first=True)
        with torch.inference_mode():
            streams = self._decoder(input_ids=padded, output_hidden_states=True, use_cache=False).hidden_states
        return {
            exit_layer: [streams[exit_layer][row, : len(ids)] for row, ids in enumerate(sequences)]
            for exit_layer in self._exits
        }


def target_config(model: Path) -> Any:
    """The target's Hugging Face configuration.

    Raises:
        OSError: the folder holds none.
    """
    return AutoConfig.from_pretrained(str(model))


def _first_layers(model: Path, count: int) -> Any:
    """The target with its first ``count`` layers only."""
    config = target_config(model)
    config.num_hidden_layers = count
    verbosity = logging.get_verbosity()
    # The checkpoint's other layers are left out on purpose; a table of them would hide what is worth reading.
    logging.set_verbosity_error()
    try:
        return AutoModelForCausalLM.from_pretrained(str(model), config=config, dtype=torch.float32)
    finally:
        logging.set_verbosity(verbosity)
