"""A draft adapter that nobody trained: its own drafts are nearly always wrong, which exercises every way back."""

from pathlib import Path

import torch
from transformers import AutoConfig

from services.workers.draft_adapter.config import DraftAdapterConfig
from services.workers.draft_adapter.files import D2T, save_adapter, weight_shapes

DRAFT_VOCABULARY = 4096
LOOKUP_AGREEMENT = (0.25, 0.6, 0.7, 0.75, 0.8, 0.8, 0.85, 0.95)
"""More than such an adapter's confidence, so that repetitions are drafted and hit."""


def write_random_adapter(folder: Path, model: Path, exit_layer: int) -> Path:
    """An adapter of ``model`` that reads after ``exit_layer`` layers; returns ``folder``."""
    target = AutoConfig.from_pretrained(model)
    vocabulary = min(DRAFT_VOCABULARY, target.vocab_size)
    config = DraftAdapterConfig.for_target(
        model.name,
        target,
        exit_layer=exit_layer,
        input_residual=True,
        draft_vocab_size=vocabulary,
        lookup_agreement=LOOKUP_AGREEMENT,
    )
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.ones(shape) if len(shape) == 1 else 0.02 * torch.randn(shape, generator=generator)
        for name, shape in weight_shapes(config).items()
    }
    save_adapter(folder, config, {**tensors, D2T: torch.arange(vocabulary)})
    return folder
