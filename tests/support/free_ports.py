"""Ports for the servers of a test."""

import os
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle

FIRST_PORT, WORKERS, PORTS = 12_000, 8, 2_500
"""Up to 32,000; Linux gives clients those from 32,768 on. Redis puts its cluster bus 10,000 above its own port."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on, and that no one else is given.

    Below those that the kernel gives to clients, so that none of them takes it before its server does, and each process
    that runs tests has a part of its own.
    """
    for port in _PORTS:
        with socket.socket() as listener:
            # As servers do: a port whose last connections are still closing is free to listen on.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                listener.bind(("127.0.0.1", port))
                return port
    raise AssertionError("the ports never end")


def _ports() -> Iterator[int]:
    """Round and round, from anywhere in the part of this worker (of pytest-xdist: gw0, gw1, …)."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    part = range(FIRST_PORT + worker * PORTS, FIRST_PORT + (worker + 1) * PORTS)
    start = random.SystemRandom().randrange(PORTS)
    return cycle((*part[start:], *part[:start]))


_PORTS = _ports()
