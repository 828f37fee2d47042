"""The file of ``forerun up``: short, typed, and exact about what is wrong."""

from pathlib import Path

import pytest

from services.cli.config_section import section_of
from services.cli.local_config import LocalConfig
from services.common.config_file import load_config
from services.common.errors import ConfigError
from services.router.config import RouterConfig

REPOSITORY = Path(__file__).parents[3]


def load(tmp_path: Path, text: str) -> LocalConfig:
    path = tmp_path / "local.yaml"
    path.write_text(text)
    return load_config(path, LocalConfig)


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text)
    return [line.removeprefix(f"{tmp_path}/") for line in str(error.value).splitlines()]


def test_one_line_is_enough(tmp_path: Path) -> None:
    config = load(tmp_path, "model: smollm2-135m\n")
    assert config.model_names == ("smollm2-135m",)
    assert [replica.replica_id for replica in config.replicas] == ["replica-0"]
    assert config.replicas[0].stage_processes == 1
    assert config.router.http_listen == "127.0.0.1:8000"
    assert config.needs_model


def test_the_file_that_ships_is_valid() -> None:
    config = load_config(REPOSITORY / "deploy" / "local.yaml", LocalConfig)
    assert config.replicas[0].pipeline_stages == 2


def test_every_field_of_the_file_that_ships_is_explained() -> None:
    lines = (REPOSITORY / "deploy" / "local.yaml").read_text().splitlines()
    names = {line.split(":")[0].strip(" -#") for line in lines}
    assert set(LocalConfig.model_fields) <= names


def test_replicas_are_named_by_position(tmp_path: Path) -> None:
    config = load(tmp_path, "model: m/x\nreplicas:\n  - pipeline_stages: 2\n  - replica_id: b\n  - {}\n")
    assert [replica.replica_id for replica in config.replicas] == ["replica-0", "b", "replica-2"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("model: m\nrouter:\n  max_concurrent_request: 3\n", "local.yaml:3: router.max_concurrent_request: unknown"),
        ("model: m\nreplicas:\n  - step_timeout_s: -1\n", "local.yaml:3: replicas.0.step_timeout_s: Input should"),
        ("model: m\nreplicas:\n  - stage: {load_timeout_s: abc}\n", "local.yaml:3: replicas.0.stage.load_timeout_s:"),
        ("model: m\nreplicas: []\n", "local.yaml:2: replicas: List should have at least 1"),
        ("model: m\nrestart: always\n", "local.yaml:2: restart: Input should be 'never' or 'replica'"),
        ("served_model_names: [a]\n", "local.yaml:1: model: missing"),
        ("model: m\nrouter: {replicas: []}\n", "local.yaml:2: router.replicas: unknown field"),
        ("model: m\nreplicas:\n  - stages: [[a:1]]\n", "local.yaml:3: replicas.0.stages: unknown field"),
        (
            "model: m\nreplicas:\n  - pipeline_stages: 2\n    cores: [[0]]\n",
            "local.yaml:3: replicas.0: cores has 1 entries for 2 stage processes",
        ),
        ("model: m\nreplicas:\n  - {engine: fake, pipeline_stages: 2}\n", "local.yaml:3: replicas.0: the fake engine"),
        (
            "model: m\nreplicas: [{replica_id: a}, {replica_id: a}]\n",
            "local.yaml:1: (file): replicas: a occurs more than once",
        ),
        ("model: [unclosed\n", "local.yaml:"),
    ],
)
def test_mistakes_name_line_and_field(tmp_path: Path, text: str, problem: str) -> None:
    found = problems(tmp_path, text)
    assert len(found) == 1
    assert found[0].startswith(problem)


def test_a_section_leaves_out_only_fields_that_exist() -> None:
    with pytest.raises(ValueError, match="RouterConfig has no field replicaz"):
        section_of(RouterConfig, "Section", without=["replicaz"])
