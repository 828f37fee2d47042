"""Hidden states as raw bytes, and the inbox between the receiving RPC and the model thread."""

import threading
import time

import pytest
import torch
from forerun.stage.v1 import service_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

from services.workers.activations import ActivationInbox, ActivationsLostError, from_proto, to_proto

CPU = torch.device("cpu")


@settings(deadline=None, max_examples=50)
@given(
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    rows=st.integers(0, 5),
    columns=st.integers(1, 7),
    seed=st.integers(0, 2**16),
)
def test_tensors_survive_bit_for_bit(dtype: torch.dtype, rows: int, columns: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    # A transposed view, since the model may hand over tensors that are not contiguous.
    sent = {"hidden_states": torch.randn(columns, rows, generator=generator).to(dtype).t()}
    received = from_proto(to_proto(sent), CPU)
    assert received["hidden_states"].dtype == dtype
    assert torch.equal(received["hidden_states"], sent["hidden_states"])


def test_received_tensors_may_be_written_to() -> None:
    received = from_proto(to_proto({"residual": torch.ones(2, 2)}), CPU)["residual"]
    received += 1
    assert received.sum() == 8


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (pb.Tensor(name="x", dtype="float32", shape=[2, 2], data=b"\0" * 15), "15 bytes"),
        (pb.Tensor(name="x", dtype="Module", shape=[1], data=b"\0"), "unknown dtype 'Module'"),
        (pb.Tensor(name="x", dtype="float64; drop", shape=[1], data=b"\0" * 8), "unknown dtype"),
    ],
)
def test_a_tensor_that_lies_is_refused(message: pb.Tensor, words: str) -> None:
    with pytest.raises(ActivationsLostError, match=words):
        from_proto([message], CPU)


def test_activations_are_taken_by_step_in_any_order_of_arrival() -> None:
    inbox = ActivationInbox()
    for step in (3, 1, 2):
        inbox.put(pb.PushActivationsRequest(step=step))
    assert [inbox.take(step, 0.1).step for step in (1, 2, 3)] == [1, 2, 3]


def test_a_wait_ends_when_the_activations_come() -> None:
    inbox = ActivationInbox()
    threading.Timer(0.05, inbox.put, [pb.PushActivationsRequest(step=7)]).start()
    assert inbox.take(7, 5.0).step == 7


def test_a_wait_is_bounded() -> None:
    began = time.monotonic()
    with pytest.raises(ActivationsLostError, match=r"step 1 within 0\.05 s"):
        ActivationInbox().take(1, 0.05)
    assert time.monotonic() - began < 2


def test_losing_the_previous_stage_wakes_the_waiting_step_and_fails_later_ones() -> None:
    inbox = ActivationInbox()
    threading.Timer(0.05, inbox.lose, ["the previous stage went away"]).start()
    for _ in range(2):
        with pytest.raises(ActivationsLostError, match="went away"):
            inbox.take(1, 5.0)


def test_the_previous_stage_s_error_is_passed_on() -> None:
    inbox = ActivationInbox()
    inbox.put(pb.PushActivationsRequest(step=1, error=pb.StepError(kind="RuntimeError", message="out of memory")))
    with pytest.raises(ActivationsLostError, match="out of memory"):
        inbox.take(1, 1.0)


def test_a_sender_that_runs_wild_is_refused() -> None:
    inbox = ActivationInbox(max_steps=2)
    inbox.put(pb.PushActivationsRequest(step=1))
    inbox.put(pb.PushActivationsRequest(step=2))
    with pytest.raises(ActivationsLostError, match="wait unread"):
        inbox.put(pb.PushActivationsRequest(step=3))
