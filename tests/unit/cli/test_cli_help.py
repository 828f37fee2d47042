"""The command line itself: quick to answer, and every command explains itself."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from services.cli.main import ForerunGroup, typer_app

HEAVY = ("grpc", "pydantic", "rich", "redis", "torch", "vllm", "transformers", "ruamel")


def test_help_lists_every_command_without_importing_one() -> None:
    program = (
        "import sys\n"
        "from services.cli.main import typer_app\n"
        "try: typer_app(['--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        f"sys.exit(', '.join(name for name in {HEAVY!r} if name in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert result.stderr.strip() == "", "these take longer to import than --help may take"
    for row in ForerunGroup.table:
        assert row.name in result.stdout
        assert row.help in result.stdout


PAGES = [
    page.split()
    for page in (
        "up", "doctor", "generate", "status", "health", "trace", "ledger show", "ledger check", "profile", "plan",
        "certs", "models get", "models list", "train adapter", "train predictor", "train eagle3", "train draft",
        "train depth", "train router", "bench grid", "bench report", "version",
    )
]  # fmt: skip


def test_no_command_is_forgotten_here() -> None:
    assert {page[0] for page in PAGES} == {row.name for row in ForerunGroup.table}


@pytest.mark.parametrize("page", PAGES, ids=" ".join)
def test_every_command_explains_itself_with_examples(page: list[str]) -> None:
    result = CliRunner().invoke(typer_app, [*page, "--help"])
    assert result.exit_code == 0, result.output
    assert "Examples:" in result.output
    assert f"forerun {' '.join(page)}" in result.output


def test_an_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(typer_app, ["gnerate"])
    assert result.exit_code == 2
    assert "gnerate" in result.output


def test_version_as_json() -> None:
    result = CliRunner().invoke(typer_app, ["version", "--json", "--verbose"])
    assert result.exit_code == 0
    assert '"forerun"' in result.output
    assert '"torch"' in result.output
