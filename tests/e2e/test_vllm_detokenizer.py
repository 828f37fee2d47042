"""A prompt's text never comes back in an answer, wherever in its bytes the prompt stops."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from services.scheduler.vllm_detokenizer import PromptEndStream

TEXTS = [
    "A smile: 🙃 and more",
    "日本語のテキスト",
    "🙂🙃🫠 emoji only",
    "ends with a replacement \ufffd and goes on",
    "e\u0301 combining, ﷺ ligature, 🇨🇿 flag",
]


@pytest.fixture(scope="module")
def tokenizer(model_path: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(model_path)


def answer_text(tokenizer: PreTrainedTokenizerBase, prompt: list[int], answer: list[int]) -> str:
    stream = PromptEndStream(tokenizer._tokenizer, prompt, skip_special_tokens=True)
    return "".join(stream.step(tokenizer._tokenizer, token_id) or "" for token_id in answer)


@pytest.mark.parametrize("text", TEXTS)
def test_every_cut_of_a_text(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    """The answer goes on where the last whole character of the prompt ended."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    for cut in range(1, len(ids)):
        prompt, answer = ids[:cut], ids[cut:]
        prompt_text = tokenizer.decode(prompt)
        if not prompt_text.endswith("\ufffd"):
            continue
        whole = prompt_text.rstrip("\ufffd")
        expected = text.removeprefix(whole)
        if text.startswith(prompt_text):
            expected = text.removeprefix(prompt_text)
        assert answer_text(tokenizer, prompt, answer) == expected, prompt_text


def test_broken_bytes_stay_the_prompts(tokenizer: PreTrainedTokenizerBase) -> None:
    half = tokenizer.encode("smile 🙃", add_special_tokens=False)[:-1]
    assert answer_text(tokenizer, half, tokenizer.encode(" world", add_special_tokens=False)) == " world"


def test_a_prompt_of_nothing_but_broken_bytes(tokenizer: PreTrainedTokenizerBase) -> None:
    half = tokenizer.encode("🙃", add_special_tokens=False)[:1] * 300
    assert answer_text(tokenizer, half, tokenizer.encode(" hello", add_special_tokens=False)) == " hello"
