"""Errors that a user can act upon: one line, a code, no traceback."""

import pytest
import typer

from services.cli.errors import EXIT_CODES, CliError, reports_errors
from services.common.errors import ConfigError, RequestEndedError
from services.common.outcome import Outcome


def ending_of(error: BaseException, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    @reports_errors
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as exit_:
        command()
    return exit_.value.exit_code, capsys.readouterr().err


def test_known_errors_become_a_line_and_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert ending_of(CliError("no such thing", 1), capsys) == (1, "error: no such thing\n")
    assert ending_of(ConfigError("a.yaml:3: x: wrong"), capsys) == (2, "error: a.yaml:3: x: wrong\n")
    assert ending_of(KeyboardInterrupt(), capsys) == (130, "error: interrupted\n")


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_a_code_and_only_success_is_zero(outcome: Outcome) -> None:
    assert (EXIT_CODES[outcome] == 0) == outcome.is_success


def test_an_ended_request_names_its_outcome(capsys: pytest.CaptureFixture[str]) -> None:
    error = RequestEndedError(Outcome.DEADLINE, "too late")
    assert ending_of(error, capsys) == (5, "error: deadline: too late\n")


def test_a_bug_keeps_its_traceback() -> None:
    @reports_errors
    def command() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        command()
