"""Single tensors of the target's checkpoint: what a stage needs of layers that another stage holds."""

import json
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open

from services.common.errors import ConfigError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_FINAL_NORM = "model.norm.weight"
_EMBEDDING = "model.embed_tokens.weight"
_HEADS = ("lm_head.weight", _EMBEDDING)
"""Where the LM head is; the second when it is tied to the embedding. Names of Llama- and Qwen-type models."""


class TargetWeights:
    """A checkpoint in safetensors files, read tensor by tensor."""

    def __init__(self, model: str) -> None:
        """``model``: folder or Hugging Face id. Raises ``ConfigError`` when it has no safetensors files."""
        self._folder = Path(model) if Path(model).is_dir() else Path(snapshot_download(model))
        index = self._folder / _INDEX
        if index.is_file():
            self._files: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        elif (self._folder / _SINGLE).is_file():
            with safe_open(self._folder / _SINGLE, framework="pt") as file:
                self._files = dict.fromkeys(file.keys(), _SINGLE)
        else:
            raise ConfigError(f"model: {self._folder} has no {_SINGLE}; drafting needs a safetensors checkpoint")

    def final_norm(self) -> torch.Tensor:
        """The norm before the LM head, [hidden]."""
        return self._read(_FINAL_NORM)

    def embedding(self) -> torch.Tensor:
        """Of the tokens, [vocabulary, hidden], in the file's own type."""
        return self._read(_EMBEDDING)

    def head_rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """The LM head's rows of ``token_ids`` [draft vocabulary], as [draft vocabulary, hidden]."""
        return self._read(next((name for name in _HEADS if name in self._files), _HEADS[0]))[token_ids]

    def _read(self, name: str) -> torch.Tensor:
        if name not in self._files:
            raise ConfigError(f"model: {self._folder} has no {name}; drafting is for Llama- and Qwen-type models")
        with safe_open(self._folder / self._files[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
            return tensor
