"""How far chains of drafts reach, on drafts that can be counted by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from services.common.training.answer_shards import Answer
from services.common.training.prompt import Message, Prompt
from services.common.training.states import STATES
from services.common.training.training_data import AnsweredPrompt, Batch
from services.workers.training.chains import Reach, measure_chains


def sequence(folder: Path, workload: str, answer: list[int], temperature: float = 0.0) -> AnsweredPrompt:
    prompt = Prompt("0" * 16, workload, "test", "held_out", temperature, (Message("user", "?"),))
    made = Answer("0" * 16, np.array([90, 91], np.int32), np.array(answer, np.int32))
    path = folder / f"{workload}-{len(answer)}.safetensors"
    save_file({STATES: torch.zeros(made.positions, 4)}, path)
    return AnsweredPrompt(prompt, made, (), path, 0)


def successor(batch: Batch, depth: int) -> Tensor:
    """Drafts the next numbers after every token."""
    return batch.tokens[:, None] + 1 + torch.arange(depth)


def test_a_chain_ends_at_its_first_wrong_draft(tmp_path: Path) -> None:
    # Chains of two drafts start after the answer's tokens 1, 2, 3, 9: right right, right wrong, wrong (right), right.
    chat = sequence(tmp_path, "chat", [1, 2, 3, 9, 10, 12])
    report = measure_chains(successor, [chat], depth=2)
    assert report.overall.chains == 4
    assert report.overall.accepted == (3 / 4, 1 / 4)
    assert report.overall.accuracy == (3 / 4, 1 / 3)
    assert report.overall.mean_accepted == 1.0


def test_workloads_are_apart_and_packing_changes_nothing(tmp_path: Path) -> None:
    both = [sequence(tmp_path, "chat", [1, 2, 3, 4]), sequence(tmp_path, "code", [1, 5, 9, 13, 14])]
    together, apart = (measure_chains(successor, both, depth=2, batch_tokens=size) for size in (1000, 1))
    assert together == apart
    assert together.by_workload["chat"] == Reach(2, (1.0, 1.0))
    assert together.by_workload["code"] == Reach(3, (0.0, 0.0))


def test_sampled_and_short_answers_are_not_counted(tmp_path: Path) -> None:
    sampled, short = sequence(tmp_path, "chat", [1, 2, 3, 4, 5], temperature=1.0), sequence(tmp_path, "chat", [1, 2])
    with pytest.raises(ValueError, match="no held-out greedy answer is longer than 2 tokens"):
        measure_chains(successor, [sampled, short], depth=2)
