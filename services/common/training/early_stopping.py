"""Epochs until validation gets no better."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn


@dataclass(frozen=True, slots=True)
class Course:
    """How a training went."""

    epochs: int
    """That were run."""
    best_epoch: int
    """From 1; whose weights were kept."""
    validation_loss: float
    """Of that one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop."""

    epochs: int
    """At most."""
    patience: int
    """Epochs without a better validation loss after which it stops."""


def train_until_no_better(
    net: nn.Module,
    run_epoch: Callable[[int], None],
    validation_loss: Callable[[], float],
    limits: Limits,
    on_epoch: Callable[[int, float], None],
) -> Course:
    """Leaves ``net`` with the weights of its lowest validation loss.

    Args:
        net: what is trained.
        run_epoch: one pass over the data, by its number from 1.
        validation_loss: of the net as it is.
        limits: when to stop.
        on_epoch: called with the number of epochs done and the validation loss.
    """
    best, course = copy.deepcopy(net.state_dict()), Course(0, 0, float("inf"))
    for epoch in range(1, limits.epochs + 1):
        run_epoch(epoch)
        loss = validation_loss()
        course = replace(course, epochs=epoch)
        if loss < course.validation_loss:
            best, course = copy.deepcopy(net.state_dict()), Course(epoch, epoch, loss)
        on_epoch(epoch, loss)
        if epoch - course.best_epoch >= limits.patience:
            break
    net.load_state_dict(best)
    return course
