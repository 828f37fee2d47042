"""Turns a GGUF file into a Hugging Face checkpoint in bfloat16: ``python -m services.cli.gguf_convert GGUF FOLDER``.

A process of its own, so that the CLI never loads torch.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def convert(gguf_file: Path, folder: Path) -> None:
    """Writes weights, configuration, tokenizer and chat template of ``gguf_file`` into ``folder``."""
    source, name = str(gguf_file.parent), gguf_file.name
    model = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=name,
        quantization_config=GgufConfig(gguf_file=name, dequantize=True),
        dtype=torch.bfloat16,
    )
    # The weights are dense now; left in the configuration, the entry would make readers look for GGUF blocks.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
