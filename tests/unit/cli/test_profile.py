"""``forerun profile`` as its user meets it, up to where it would start the first process, and what it writes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from services.cli import profile as profile_command
from services.cli.main import typer_app
from services.cli.profiler import Profiler
from services.common.latency_profile import LatencyProfile
from services.scheduler.sp_profile import SplitProfile, load_profile
from services.scheduler.sp_split import Split
from tests.support.small_adapter import make_config
from tests.support.tiny_model import write_tiny_model

FILE = "replicas: [{engine_args: {dtype: float32}}]\nmodel: other\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "model")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Profiler, list[Split]]]:
    """Stands in for all that takes processes."""
    calls: list[tuple[Profiler, list[Split]]] = []

    def measure(self: Profiler, splits: Sequence[Split], *, balance: bool) -> list[SplitProfile]:
        calls.append((self, list(splits)))
        latency = LatencyProfile(rows=(1, 4), ms=(10.0, 12.0))
        return [
            SplitProfile(
                pp=split.pp,
                tp=split.tp,
                layers=split.layers,
                micro_batching=split.micro_batching,
                stages=(latency,) * split.stages,
                kv_sequences=8,
            )
            for split in splits
        ]

    monkeypatch.setattr(profile_command.Profiler, "measure", measure)
    return calls


def run(tmp_path: Path, model: object, *arguments: object, out: str = "profile.json") -> Result:
    (tmp_path / "local.yaml").write_text(FILE)
    command: list[Any] = ["profile", model, "-o", tmp_path / out, "-f", tmp_path / "local.yaml", *arguments]
    return CliRunner().invoke(typer_app, [str(part) for part in command])


def test_what_is_written_is_what_plan_reads(
    tmp_path: Path, model: Path, measured: list[tuple[Profiler, list[Split]]]
) -> None:
    result = run(tmp_path, model, "--json", "--set", "replicas.0.engine_args.dtype=bfloat16")
    assert result.exit_code == 0, result.output
    written = load_profile(tmp_path / "profile.json")
    assert json.loads(result.stdout)["splits"] == json.loads((tmp_path / "profile.json").read_text())["splits"]
    assert written.devices == 2
    assert [split.name for split in written.splits] == [str(split) for split in measured[0][1]]
    profiler, _ = measured[0]
    assert profiler.base["model"] == str(model)
    assert profiler.base["replicas"][0]["engine_args"] == {"dtype": "bfloat16"}
    plan = CliRunner().invoke(typer_app, ["plan", str(tmp_path / "profile.json"), "--batch", "4"])
    assert plan.exit_code == 0, plan.output
    assert "1+1 one batch" in plan.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layers", "17;13"], "--layers 17;13: must be numbers of layers, as in 17,13"),
        (["--layers", "2,2"], "--layers 2,2: must name the layers of each stage, 2 in all"),
        (["--rows", "4"], "--rows 4: how time grows with rows needs two or more numbers"),
        (["--set", "replicas.0.engine_arg=1"], "replicas.0.engine_arg"),
        (["--adapter", "none"], "name a draft adapter's folder"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    tmp_path: Path, model: Path, arguments: list[str], message: str
) -> None:
    result = run(tmp_path, model, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_places_that_cannot_be_are_refused(tmp_path: Path, model: Path) -> None:
    assert "--out" in run(tmp_path, model, out="no/profile.json").stderr
    assert "holds no config.json" in run(tmp_path, tmp_path).stderr
    (tmp_path / "adapter").mkdir()
    make_config().write(tmp_path / "adapter")
    other = run(tmp_path, model, "--adapter", tmp_path / "adapter")
    assert other.exit_code == 2
    assert "it was trained for another model" in other.stderr
