"""Where commands write tables: as wide as the terminal, or wide enough not to be folded when read by a program."""

from rich.console import Console

PIPE_WIDTH = 200


def output_console(*, stderr: bool = False) -> Console:
    """A console on standard output or error."""
    console = Console(stderr=stderr)
    if not console.is_terminal:
        console = Console(stderr=stderr, width=PIPE_WIDTH)
    return console
