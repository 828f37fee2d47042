"""Received activations are read in the order of the receiving batch, without the rows that it leaves out."""

from types import SimpleNamespace

import pytest
import torch

from services.workers.vllm_arrived_rows import ArrivedRows

SENT = ["a", "b", "c"]
TOKENS = {"a": 1, "b": 3, "c": 1}
HIDDEN = torch.arange(10.0).reshape(5, 2)


@pytest.mark.parametrize(
    ("batch", "rows"),
    [(["a", "b", "c"], [0, 1, 2, 3, 4]), (["c", "b"], [4, 1, 2, 3]), (["b", "c", "a"], [1, 2, 3, 4, 0]), (["a"], [0])],
    ids=str,
)
def test_rows_come_in_the_order_of_the_batch(batch: list[str], rows: list[int]) -> None:
    arrived = ArrivedRows({"hidden_states": HIDDEN, "residual": -HIDDEN}, SENT, TOKENS, SimpleNamespace(req_ids=batch))
    read = dict(arrived.items())
    assert torch.equal(read["hidden_states"], HIDDEN[rows])
    assert torch.equal(read["residual"], -HIDDEN[rows])


def test_the_batch_is_looked_at_when_the_rows_are_read() -> None:
    batch = SimpleNamespace(req_ids=["a", "b", "c"])
    arrived = ArrivedRows({"hidden_states": HIDDEN}, SENT, TOKENS, batch)
    batch.req_ids = ["c", "a"]
    assert torch.equal(dict(arrived.items())["hidden_states"], HIDDEN[[4, 0]])
