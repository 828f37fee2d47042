"""What training tells about itself while it runs."""

from typing import Protocol


class Listener(Protocol):
    """Is told about one step at a time."""

    def step(self, name: str, total: int | None = None) -> None:
        """A step begins; ``total`` in its own unit (tokens, training steps), None where it cannot be measured."""

    def reach(self, done: int, note: str) -> None:
        """The step has come so far; ``note`` is for people."""


class Count:
    """Something that grows, told to a listener at every step."""

    def __init__(self, listen: Listener, unit: str, done: int = 0) -> None:
        self._listen = listen
        self._unit = unit
        self.done = done

    def add(self, count: int) -> None:
        """So many more."""
        self.done += count
        self._listen.reach(self.done, self._unit)
