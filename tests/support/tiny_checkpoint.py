"""A tiny random Llama with weights, and answers of it: all that adapter training needs, without an engine."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from services.common.training.answer_shards import Answer
from services.common.training.answers import AnswerOptions
from services.common.training.prompt import Prompt
from tests.support.tiny_model import write_tiny_model


def write_tiny_checkpoint(folder: Path, layers: int = 3, hidden_size: int = 64, spread: float = 0.02) -> Path:
    """Writes the tiny model of ``layers`` layers with random weights into ``folder`` and returns it.

    Args:
        folder: may be there.
        layers: their number.
        hidden_size: four heads' width; vLLM's attention on a CPU needs heads of 32 numbers.
        spread: standard deviation of the weights; with 0.02 a tiny model only repeats its last token, with 0.1 every
            token before makes a difference.
    """
    config = AutoConfig.from_pretrained(str(write_tiny_model(folder)))
    config.num_hidden_layers, config.hidden_size, config.head_dim = layers, hidden_size, hidden_size // 4
    config.initializer_range = spread
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


class TinyTarget:
    """A ``Target`` that answers one prompt a step, greedily; a prompt's characters are its tokens."""

    def __init__(self, model: Path, options: AnswerOptions) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(str(model), dtype=torch.float32)
        self._options = options
        self._waiting: list[Prompt] = []

    def add(self, prompt: Prompt) -> bool:
        self._waiting.append(prompt)
        return True

    def step(self) -> list[Answer]:
        prompt = self._waiting.pop(0)
        return [self._answer(prompt.id, [ord(each) % 256 for each in prompt.messages[-1].content])]

    @torch.inference_mode()
    def _answer(self, prompt_id: str, ids: Sequence[int]) -> Answer:
        tokens = list(ids)
        for _ in range(self._options.max_answer_tokens):
            tokens.append(int(self._model(torch.tensor([tokens])).logits[0, -1].argmax()))
        return Answer(prompt_id, np.array(ids, np.int32), np.array(tokens[len(ids) :], np.int32))
