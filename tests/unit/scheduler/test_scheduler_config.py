"""What the configuration refuses, by field."""

from pathlib import Path

import pytest

from services.common.config import ClientTlsConfig, TelemetryConfig
from services.common.ledger import LedgerConfig
from services.scheduler.config import SchedulerConfig
from services.scheduler.engine_core_settings import EngineCoreSettings


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"stages": [["h:1"], ["h:2", "h:3"]]}, "same number"),
        ({"stages": [[]]}, "same number"),
        ({"stages": [["h:1"], ["h:1"]]}, "more than once"),
        ({"stages": [["h:1"]], "engine": "fake"}, "fake engine has none"),
        ({"stages": [["nowhere"]]}, "host:port"),
        ({"stages": [["h:1"]], "embedding": "host"}, "embedding: host needs at least two"),
        ({"speculation": {"draft_adapter": "a", "drop_fraction": 1.0}}, "less than 1"),
        ({"speculation": {"draft_adapter": "a", "drop_fraction": "some"}}, "auto"),
        ({"fake": {"total_blocks": 1}}, "total_blocks"),
        ({"replica_id": "no spaces"}, "replica_id"),
        ({"no_such_field": 1}, "no_such_field"),
        ({"server": {"listen": "0.0.0.0:1"}}, "advertise"),
        (
            {"stages": [["h:1"], ["h:2"]], "speculation": {"draft_adapter": "a"}, "micro_batching": False},
            "micro_batching: must be true",
        ),
    ],
)
def test_refused(values: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        SchedulerConfig.model_validate(values)


def test_model_names_default_to_the_model() -> None:
    assert SchedulerConfig(model="m").model_names == ("m",)
    assert SchedulerConfig(model="m", served_model_names=["a", "b"]).model_names == ("a", "b")


def test_engine_core_settings_survive_the_engines_configuration() -> None:
    settings = EngineCoreSettings(
        replica_id="r",
        generation=3,
        address="127.0.0.1:1",
        stages=[["a:1"], ["b:2"]],
        stage_tls=ClientTlsConfig(ca_file=Path("ca.pem")),
        ledger=LedgerConfig(url="redis://127.0.0.1:6379/0"),
        telemetry=TelemetryConfig(traces_dir=Path("traces")),
    )
    assert EngineCoreSettings.from_additional_config({"x": 1, **settings.to_additional_config()}) == settings
    with pytest.raises(LookupError, match="not started by Forerun"):
        EngineCoreSettings.from_additional_config({})
