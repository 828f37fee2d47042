"""The target in float32: what the adapter in training reads from, and what it shall become equal to."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM


class TargetStreams:
    """The target as a function from token ids to its residual streams after some numbers of layers."""

    def __init__(self, model: Path, layers: Sequence[int]) -> None:
        """Loads the target; ``layers`` are numbers of layers before a stream, all of them for the last one."""
        self._decoder = AutoModelForCausalLM.from_pretrained(str(model), dtype=torch.float32).get_decoder()
        # The last stream is wanted before the final norm, like the others; layers behind it are not needed.
        self._decoder.norm = nn.Identity()
        self._decoder.layers = self._decoder.layers[: max(layers)]
        self._layers = tuple(layers)

    def streams(self, sequences: Sequence[Tensor]) -> dict[int, list[Tensor]]:
        """The residual stream after each of the numbers of layers.

        Args:
            sequences: token ids of each sequence, of any lengths; alike lengths waste least.

        Returns:
            By number of layers, one [length, hidden] tensor a sequence.
        """
        # Padded on the right and causal: no sequence sees its padding, so no mask is needed.
        padded = nn.utils.rnn.pad_sequence(list(sequences), batch_first=True)
        with torch.inference_mode():
            streams = self._decoder(input_ids=padded, output_hidden_states=True, use_cache=False).hidden_states
        return {count: [streams[count][row, : len(ids)] for row, ids in enumerate(sequences)] for count in self._layers}


def target_config(model: Path) -> Any:
    """The target's Hugging Face configuration.

    Raises:
        OSError: the folder holds none.
    """
    return AutoConfig.from_pretrained(str(model))
