"""Ties a process to its parent's life, so that a killed parent leaves no orphan holding ports, memory or Redis."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(signal_number: signal.Signals = signal.SIGKILL) -> None:
    """The kernel sends this process ``signal_number`` when its parent dies, however it dies. Linux only; elsewhere
    nothing happens.

    Strictly, the signal comes when the *thread* that started this process ends, so start children from threads that
    live as long as their process. When the parent is gone already, the signal is sent at once.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal_number)
