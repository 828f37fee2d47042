"""Configuration errors name file, line, field and fix; precedence is --set, file, default."""

import json
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from services.common.config import ConfigModel, ServerConfig, TelemetryConfig
from services.common.config_file import load_config, parse_service_args
from services.common.errors import ConfigError


class SmallStage(ConfigModel):
    """A stage."""

    kind: Literal["small"]
    """Which."""
    cores: int = 1
    """CPU cores."""


class LargeStage(ConfigModel):
    """A stage with a device."""

    kind: Literal["large"]
    """Which."""
    device: str
    """Its device."""


class ServiceConfig(ConfigModel):
    """A service."""

    server: ServerConfig = ServerConfig()
    """How it listens."""
    telemetry: TelemetryConfig = TelemetryConfig()
    """Traces and logs."""
    stages: list[Annotated[SmallStage | LargeStage, Field(discriminator="kind")]] = Field(default_factory=list)
    """Stages in order."""
    models: dict[str, ServerConfig] = Field(default_factory=dict)
    """By name."""
    limit: int = Field(default=8, ge=1)
    """Requests at once."""


@pytest.fixture
def write(tmp_path: Path):
    def write_file(text: str, name: str = "service.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write_file


def problems(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, ServiceConfig, overrides)
    return str(caught.value).replace(str(path), path.name).splitlines()


def test_yaml_json_and_empty_files_load(write) -> None:
    assert (
        load_config(write("limit: 3\nserver:\n  listen: 127.0.0.1:5\n"), ServiceConfig).server.listen == "127.0.0.1:5"
    )
    document = json.dumps({"limit": 4, "telemetry": {"log_format": "console"}}, indent=2)
    assert load_config(write(document, "service.json"), ServiceConfig).telemetry.log_format == "console"
    assert load_config(write("# nothing set\n"), ServiceConfig) == ServiceConfig()


def test_overrides_beat_the_file_and_the_file_beats_defaults(write) -> None:
    path = write("limit: 3\nserver: {drain_timeout_s: 1}\nstages: [{kind: small}]\n")
    config = load_config(path, ServiceConfig, ["limit=5", "stages.0.cores=2", "telemetry.log_level=debug"])
    assert (config.limit, config.stages[0].cores, config.telemetry.log_level) == (5, 2, "debug")
    assert config.server.drain_timeout_s == 1
    assert config.server.max_message_bytes == ServerConfig().max_message_bytes


def test_override_values_are_yaml(write) -> None:
    config = load_config(
        write(""), ServiceConfig, ["models={a: {allow_plaintext: true}}", "telemetry.otlp_endpoint=null"]
    )
    assert config.models["a"].allow_plaintext is True
    assert config.telemetry.otlp_endpoint is None


def test_a_bad_value_names_its_line_and_shows_it(write) -> None:
    path = write("# comment\nserver:\n  listen: nowhere\n\nlimit: 0\n")
    assert problems(path) == [
        "service.yaml:3: server.listen: 'nowhere' is not host:port with a port of 0 to 65535; got 'nowhere'",
        "service.yaml:5: limit: Input should be greater than or equal to 1; got 0",
    ]


def test_an_unknown_field_names_the_closest_known_one(write) -> None:
    path = write("server:\n  lisen: 127.0.0.1:1\ntelemetry: {zzz: 1}\nmodels:\n  mine:\n    allow_plain: true\n")
    first, second, third = sorted(problems(path))
    assert first == "service.yaml:2: server.lisen: unknown field; did you mean listen?"
    assert second.startswith("service.yaml:3: telemetry.zzz: unknown field; known here: log_format, log_level")
    assert third == "service.yaml:6: models.mine.allow_plain: unknown field; did you mean allow_plaintext?"


def test_a_missing_field_names_the_line_of_its_parent(write) -> None:
    path = write("limit: 1\nserver:\n  tls:\n    cert_file: a.pem\n")
    assert problems(path) == ["service.yaml:3: server.tls.key_file: missing; add it"]


def test_union_members_leave_no_trace_in_the_field_path(write) -> None:
    path = write("stages:\n  - kind: small\n  - kind: large\n    cores: 3\n")
    missing, unknown = problems(path)
    assert missing == "service.yaml:3: stages.1.device: missing; add it"
    assert unknown.startswith("service.yaml:4: stages.1.cores: unknown field; ")


def test_model_rules_name_the_line_of_the_model(write) -> None:
    path = write("server:\n  tls:\n    cert_file: a\n    key_file: b\n")
    (problem,) = problems(path)
    assert problem.startswith("service.yaml:2: server.tls: require_client_cert needs ca_file")


def test_an_overridden_field_is_blamed_on_its_override(write) -> None:
    path = write("limit: 3\n")
    assert problems(path, "limit=-1") == ["--set limit=-1: limit: Input should be greater than or equal to 1; got -1"]
    (problem,) = problems(path, "server.lissten=127.0.0.1:1")
    assert problem == "--set server.lissten=127.0.0.1:1: server.lissten: unknown field; did you mean listen?"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("limit", "expected FIELD=VALUE"),
        ("=3", "expected FIELD=VALUE"),
        ("limit.deeper=3", "nothing there to set"),
        ("stages.4.cores=1", "nothing there to set"),
        ("limit=[", "not valid YAML"),
    ],
)
def test_impossible_overrides_are_refused_by_name(write, override: str, message: str) -> None:
    (problem,) = problems(write("limit: 3\nstages: []\n"), override)
    assert problem.startswith(f"--set {override}")
    assert message in problem


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("limit: 1\nserver: [\n", 3, "not valid YAML"),
        ("limit: 1\n\tserver: 2\n", 2, "not valid YAML"),
        ("limit: 1\nlimit: 2\n", 2, "duplicate key"),
        ("- a\n- b\n", 1, "expected a mapping"),
        ("limit: 1\n---\nlimit: 2\n", 2, "not valid YAML"),
        ("limit: .nan\n", 1, "limit"),
        ("limit: !!python/object:os.system {}\n", 1, "limit"),
    ],
)
def test_broken_files_name_the_line(write, text: str, line: int, message: str) -> None:
    problem = problems(write(text))[0]
    assert problem.startswith(f"service.yaml:{line}:"), problem
    assert message in problem


def test_non_finite_numbers_are_refused(write) -> None:
    assert problems(write("telemetry:\n  sample_ratio: .inf\n"))[0].startswith("service.yaml:2: telemetry.sample_ratio")


def test_files_that_are_no_configuration_are_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"limit: 1\nserver: \xff\xfe\n")
    with pytest.raises(ConfigError, match=r"binary\.yaml:2: not UTF-8"):
        load_config(binary, ServiceConfig)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(tmp_path / "absent.yaml", ServiceConfig)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path, ServiceConfig)
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (5 * 2**20))
    with pytest.raises(ConfigError, match="larger than"):
        load_config(large, ServiceConfig)


def test_aliases_that_explode_or_contain_themselves_are_refused(write) -> None:
    bomb = "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
    for previous, name in zip("abcdefg", "bcdefgh", strict=True):
        bomb += f"{name}: &{name} [" + ",".join([f"*{previous}"] * 10) + "]\n"
    for text in (bomb, "a: &a\n  b: *a\n"):
        with pytest.raises(ConfigError, match="alias"):
            load_config(write(text), ServiceConfig)


def test_aliases_and_merges_work(write) -> None:
    path = write("models:\n  a: &base {drain_timeout_s: 2}\n  b:\n    <<: *base\n    listen: 127.0.0.1:9\n")
    config = load_config(path, ServiceConfig)
    assert config.models["b"].drain_timeout_s == 2
    assert config.models["b"].listen == "127.0.0.1:9"


def test_service_arguments(write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("limit: 3\n")
    assert parse_service_args("svc", ServiceConfig, ["--config", str(path), "--set", "limit=4"]).limit == 4
    monkeypatch.setenv("FORERUN_CONFIG", str(path))
    assert parse_service_args("svc", ServiceConfig, []).limit == 3
    with pytest.raises(SystemExit) as caught:
        parse_service_args("svc", ServiceConfig, ["--set", "limt=4"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == "svc: --set limt=4: limt: unknown field; did you mean limit?\n"


def test_service_arguments_need_a_file(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORERUN_CONFIG", raising=False)
    with pytest.raises(SystemExit) as caught:
        parse_service_args("svc", ServiceConfig, [])
    assert caught.value.code == 2
    assert "--config FILE is required" in capsys.readouterr().err


def test_help_documents_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_service_args("svc", ServiceConfig, ["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "  server.tls.cert_file (required): PEM certificate chain of this server." in text
    assert "  models.NAME.listen" in text
    assert "  stages.N.cores [1]: CPU cores." in text
    assert "  stages.N.device (required): Its device." in text
    assert "  server.allow_plaintext [false]" in text
