"""Varied prompts that need no data set: chat, code, maths, and long ones cut from the Python library's own source."""

import argparse
import inspect
import random
import textwrap
from pathlib import Path

from transformers import AutoTokenizer

_TOPICS = (
    "the water cycle", "how a bicycle stays upright", "why bread rises", "the French Revolution", "black holes",
    "how vaccines work", "the rules of chess", "plate tectonics", "how to plan a garden", "jazz", "the Silk Road",
    "photosynthesis", "interest rates", "why leaves change colour", "the moon landing", "how bees make honey",
    "good sleep habits", "electric cars", "the human heart", "mountain weather", "tea ceremonies", "coral reefs",
    "public libraries", "the history of zero", "volcanoes",
)  # fmt: skip
_STUBS = (
    "def fibonacci(n: int) -> int:", "def is_palindrome(text: str) -> bool:", "class Stack:", "def merge_sort(items):",
    "SELECT name, COUNT(*) FROM", "function debounce(callback, delay) {", "def read_csv(path):", "#include <stdio.h>",
    "import numpy as np\n\ndef softmax(x):", "async def fetch_all(urls):", "class LRUCache:", "def gcd(a, b):",
    "fn main() {", "def flatten(nested):", "def binary_search(items, target):", "public class Person {",
    "def word_count(text):", "const express = require('express');", "def primes_below(n):", "class Matrix:",
    "def parse_date(text):", "try:\n    with open(path) as file:", "def rotate(matrix):", "package main",
    "def roman(n):",
)  # fmt: skip
_LONG_SOURCES = (argparse, inspect, random, textwrap)
_LONG_TOKENS = (1000, 1500, 2000, 2500, 3000, 3500, 4000)


def varied_prompts(model: Path, count: int = 100) -> list[list[int]]:
    """``count`` prompts as token ids, every tenth of them long, the others chat, code and maths in turn; the same ones
    at every call."""
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    chats = [chat_tokens(tokenizer, f"Please explain {topic} to me.") for topic in _TOPICS]
    short = [chats, _texts(tokenizer, _STUBS), _texts(tokenizer, _maths())]
    long = long_prompts(tokenizer)
    prompts = []
    for index in range(count):
        kind, position = (long, index // 10) if index % 10 == 9 else (short[index % 3], index // 3)
        prompts.append(kind[position % len(kind)])
    return prompts


def short_prompts(model: Path, count: int, tokens: int = 64) -> list[list[int]]:
    """``count`` different prompts of exactly ``tokens`` tokens, so that batches are even."""
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    source = tokenizer.encode(inspect.getsource(inspect))
    return [source[index * tokens : (index + 1) * tokens] for index in range(count)]


def chat_tokens(tokenizer: "AutoTokenizer", text: str) -> list[int]:
    """What a user says, in the model's chat format, as token ids."""
    conversation = [{"role": "user", "content": text}]
    return list(tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=True)["input_ids"])


def long_prompts(tokenizer: "AutoTokenizer") -> list[list[int]]:
    """25 pieces of source code as token ids, 1,000 to 4,000 tokens each."""
    sources = [tokenizer.encode(inspect.getsource(module)) for module in _LONG_SOURCES]
    prompts = []
    for index in range(25):
        source = sources[index % len(sources)]
        tokens = min(_LONG_TOKENS[index % len(_LONG_TOKENS)], len(source) - 200)
        start = index * 37 % (len(source) - tokens)
        prompts.append(list(source[start : start + tokens]))
    return prompts


def _maths() -> list[str]:
    return [
        f"Question: A shop sells {index + 3} boxes of {index * 2 + 5} pens each and {index + 7} single pens. "
        f"How many pens is that?\nAnswer: Let us think step by step."
        for index in range(25)
    ]


def _texts(tokenizer: "AutoTokenizer", texts: "tuple[str, ...] | list[str]") -> list[list[int]]:
    return [list(tokenizer.encode(text)) for text in texts]
