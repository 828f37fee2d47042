"""A model's files without weights: a byte-level tokenizer, a chat template and the configuration of a tiny Llama."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('unknown role') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_tiny_model(folder: Path, max_model_len: int = 2048) -> Path:
    """Writes the files into ``folder`` and returns it. Each byte of a text is one token."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {
        text: index for index, text in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), *SPECIAL_TOKENS])
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json",
        tokenizer_class="PreTrainedTokenizerFast",
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=max_model_len,
        chat_template=CHAT_TEMPLATE,
    )
    _write(
        folder / "config.json",
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=max_model_len,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        torch_dtype="bfloat16",
        bos_token_id=VOCAB_SIZE - 3,
        eos_token_id=VOCAB_SIZE - 1,
        hidden_act="silu",
    )
    return folder


def _write(path: Path, **values: object) -> None:
    path.write_text(json.dumps(values))
