"""How commands fail: one line on stderr and an exit code, never a traceback for what a user can put right."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import typer

from services.common.errors import ConfigError, RequestEndedError
from services.common.outcome import Outcome

P = ParamSpec("P")
R = TypeVar("R")

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

EXIT_CODES = {
    Outcome.STOP: 0,
    Outcome.LENGTH: 0,
    Outcome.REJECTED_INVALID: EXIT_USAGE,
    Outcome.REJECTED_OVERLOAD: 3,
    Outcome.REJECTED_UNAVAILABLE: 4,
    Outcome.DEADLINE: 5,
    Outcome.REPLICA_LOST: 6,
    Outcome.INTERNAL: 7,
    Outcome.CANCELLED: EXIT_INTERRUPTED,
}
"""The exit code of a command whose request ended so."""


class CliError(Exception):
    """Something the user can read and act upon; the message says what is wrong and how to fix it."""

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def reports_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Decorates a command: known errors become ``error: …`` on stderr and an exit code."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except CliError as error:
            raise _exit(str(error), error.exit_code) from error
        except ConfigError as error:
            raise _exit(str(error), EXIT_USAGE) from error
        except RequestEndedError as error:
            raise _exit(f"{error.outcome}: {error.message}", EXIT_CODES[error.outcome]) from error
        except KeyboardInterrupt as error:
            raise _exit("interrupted", EXIT_INTERRUPTED) from error

    return run


def _exit(message: str, code: int) -> typer.Exit:
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(code)
