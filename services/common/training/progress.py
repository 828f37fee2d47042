"""What training tells about itself while it runs."""

from typing import Protocol


class Listener(Protocol):
    """Is told about one step at a time."""

    def step(self, name: str, total: int | None = None) -> None:
        """A step begins; ``total`` in its own unit (tokens, training steps), None where it cannot be measured."""

    def reach(self, done: int, note: str) -> None:
        """The step has come so far; ``note`` is for people."""
