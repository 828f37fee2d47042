"""Ports for the processes of one machine: free ones are picked, fixed ones are checked before anything starts."""

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil

from services.common.address import join_address, split_address
from services.common.errors import ConfigError


class PortPicker:
    """Replaces port 0 by a free port. Each stays bound until ``release``, so that none is given out twice."""

    def __init__(self) -> None:
        self._held = ExitStack()

    def resolve(self, address: str) -> str:
        """``address``, its port 0 replaced. Raises ``ConfigError`` when this machine has no such host."""
        host, port = split_address(address)
        if port != 0:
            return address
        bound = self._held.enter_context(_socket(host))
        try:
            bound.bind((host, 0))
        except OSError as error:
            raise ConfigError(f"{address}: no port to be had there: {error.strerror}") from None
        return join_address(host, bound.getsockname()[1])

    def release(self) -> None:
        """Frees the picked ports; the processes that they are for should bind them soon."""
        self._held.close()


def who_listens(address: str) -> str | None:
    """Names what listens on ``address``; ``None`` when the address is free to take.

    Raises:
        OSError: the host is not one of this machine.
    """
    host, port = split_address(address)
    with _socket(host) as probe:
        # As servers do; else connections in TIME_WAIT would make the port look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return _owner(port)
    return None


def _owner(port: int) -> str:
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return "another process"
    for connection in connections:
        local = connection.laddr
        if connection.status == psutil.CONN_LISTEN and local and local[1] == port and connection.pid:
            try:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
            except psutil.NoSuchProcess:
                break
    return "another process"


@contextmanager
def _socket(host: str) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as created:
        yield created
