"""``forerun plan`` as its user meets it."""

import json
import re
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from services.cli.main import typer_app
from services.cli.plan import plan


def run(*arguments: object) -> Result:
    return CliRunner().invoke(typer_app, ["plan", *(str(argument) for argument in arguments)])


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """The example that the command's own help teaches."""
    example = re.search(r"A profile of two devices:\n(.*?)\n\n", plan.__doc__ or "", re.DOTALL)
    assert example is not None
    path = tmp_path / "profile.json"
    path.write_text(example[1])
    return path


def test_the_table_ranks_explains_and_picks(profile: Path) -> None:
    result = run(profile)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "m on 2 devices"
    assert lines[2].split()[0] == "->"
    assert re.search(r"advance, drafts \d+% right", result.output)
    assert "not profiled" in result.output
    assert lines[-1].startswith("Pick: PP ")


def test_json_says_the_same(profile: Path) -> None:
    result = run(profile, "--batch", 4, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    assert document["pick"] == document["splits"][0]
    assert {split["batch"] for split in document["splits"]} == {4}
    assert document["not_profiled"] == [{"pp": 1, "tp": 2, "sp": 1}]
    speeds = [split["tokens_per_s"] for split in document["splits"]]
    assert speeds == sorted(speeds, reverse=True)
    speculating = next(split for split in document["splits"] if split["sp"] == 2)
    assert speculating["speculation"]["depth"] == 2
    assert "speculation" not in next(split for split in document["splits"] if split["sp"] == 1)


def test_a_profile_that_is_wrong_or_missing_is_a_usage_error(profile: Path, tmp_path: Path) -> None:
    profile.write_text(profile.read_text().replace('"draft": {"rows": [1, 16], "ms": [3, 6]}', '"hop_ms": 0'))
    wrong = run(profile)
    assert wrong.exit_code == 2
    assert "splits.1: sp 2 needs draft; add draft" in wrong.stderr
    absent = run(tmp_path / "none.json")
    assert absent.exit_code == 2
    assert "none.json" in absent.stderr


def test_the_plot_is_drawn(profile: Path, tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    result = run(profile, "--plot", picture)
    assert result.exit_code == 0, result.output
    assert "<svg" in picture.read_text()


def test_a_plot_that_cannot_be_is_refused(profile: Path, tmp_path: Path) -> None:
    for path, word in ((tmp_path / "plan.txt", ".svg"), (tmp_path / "no" / "plan.svg", "can be written")):
        result = run(profile, "--plot", path)
        assert result.exit_code == 2
        assert word in result.stderr
