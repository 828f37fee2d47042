"""Hidden states on their way from one stage to the next: the receiving inbox and tensors as raw bytes."""

import threading
import time
from collections.abc import Mapping

import torch
from forerun.stage.v1 import service_pb2 as pb


class ActivationsLostError(RuntimeError):
    """The previous stage failed, went away, or its activations did not come in time."""


def to_proto(tensors: Mapping[str, torch.Tensor]) -> list[pb.Tensor]:
    """Raw bytes of contiguous tensors, copied off the device. A bf16 tensor has no numpy type, so bytes it is."""
    messages = []
    for name, tensor in tensors.items():
        host = tensor.detach().to("cpu")
        # Flat first: a tensor with an extent of 1 counts as contiguous whatever its strides, and cannot be viewed so.
        data = host.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        messages.append(pb.Tensor(name=name, dtype=str(host.dtype).removeprefix("torch."), shape=host.shape, data=data))
    return messages


def from_proto(messages: list[pb.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    """Inverse of ``to_proto`` onto ``device``. Raises ``ActivationsLostError`` when bytes and shape disagree."""
    tensors = {}
    for message in messages:
        dtype = getattr(torch, message.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise ActivationsLostError(f"tensor {message.name!r} has unknown dtype {message.dtype!r}")
        expected = dtype.itemsize
        for extent in message.shape:
            expected *= extent
        if expected != len(message.data):
            raise ActivationsLostError(
                f"tensor {message.name!r}: {len(message.data)} bytes for {dtype}{list(message.shape)}"
            )
        shape = tuple(message.shape)
        # bytearray: torch warns about read-only buffers, and the model may write into its input in place.
        buffer = bytearray(message.data)
        tensor = torch.frombuffer(buffer, dtype=dtype).reshape(shape) if buffer else torch.empty(shape, dtype=dtype)
        tensors[message.name] = tensor.to(device)
    return tensors


class ActivationInbox:
    """Holds activations by step between the receiving RPC and the model thread.

    Bounded by design: the sender is at most ``max_steps`` ahead, since the scheduler keeps no more steps in flight
    than there are stages. Thread-safe.
    """

    def __init__(self, max_steps: int = 64) -> None:
        self._messages: dict[int, pb.PushActivationsRequest] = {}
        self._changed = threading.Condition()
        self._lost: str | None = None
        self._max_steps = max_steps

    def put(self, message: pb.PushActivationsRequest) -> None:
        """Called by the receiving RPC. Raises ``ActivationsLostError`` when the sender runs wild."""
        with self._changed:
            if len(self._messages) >= self._max_steps:
                raise ActivationsLostError(f"{self._max_steps} steps of activations wait unread")
            self._messages[message.step] = message
            self._changed.notify_all()

    def lose(self, reason: str) -> None:
        """The previous stage is gone: every wait, now and later, fails with ``reason``."""
        with self._changed:
            self._lost = reason
            self._changed.notify_all()

    def take(self, step: int, timeout_s: float) -> pb.PushActivationsRequest:
        """The activations of ``step``; waits for them. Raises ``ActivationsLostError``."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while step not in self._messages:
                if self._lost is not None:
                    raise ActivationsLostError(self._lost)
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not self._changed.wait(remaining):
                    raise ActivationsLostError(f"no activations for step {step} within {timeout_s:g} s")
            message = self._messages.pop(step)
        if message.HasField("error"):
            raise ActivationsLostError(f"the previous stage failed: {message.error.message}")
        return message
