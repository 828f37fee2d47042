"""An EAGLE-3 head of random weights: drafts that are nearly never right."""

from pathlib import Path

import torch
from transformers import AutoConfig

from services.workers.training.eagle3.config import aux_layers, head_config
from services.workers.training.eagle3.files import save_head
from services.workers.training.eagle3.head import Eagle3Head

DRAFTED = 64
"""Token ids that it can draft, every fourth one."""


def write_random_eagle3(folder: Path, target: Path) -> Path:
    """Writes one for ``target`` into ``folder`` and returns it."""
    hf_config = AutoConfig.from_pretrained(str(target))
    config = head_config(hf_config, aux_layers(hf_config.num_hidden_layers), DRAFTED)
    torch.manual_seed(0)
    save_head(folder, config, Eagle3Head(config), torch.arange(DRAFTED) * 4)
    return folder
