"""Engine arguments: what vLLM gets, what stages get, and what is refused with the field to use instead."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.common.errors import ConfigError
from services.scheduler.config import SchedulerConfig
from services.scheduler.engine_core_settings import EngineCoreSettings
from services.scheduler.vllm_arguments import core_settings, engine_arguments, scheduler_class
from services.scheduler.vllm_executor import GrpcExecutor
from services.scheduler.vllm_run_ahead import RunAheadScheduler
from services.scheduler.vllm_scheduler import ForerunScheduler
from services.scheduler.vllm_sp_scheduler import SpScheduler
from services.scheduler.vllm_stage_setup import configure_requests
from tests.support.small_adapter import make_config


def config(**values: Any) -> SchedulerConfig:
    return SchedulerConfig.model_validate({"model": "some/model", **values})


def test_with_stages() -> None:
    two_by_two = config(
        stages=[["h:1", "h:2"], ["h:3", "h:4"]],
        engine_args={"dtype": "float32", "additional_config": {"mine": 1}},
        served_model_names=["a", "b"],
    )
    settings = core_settings(two_by_two, "127.0.0.1:7", 5)
    arguments = engine_arguments(two_by_two, settings)
    assert json.loads(settings.engine_args_json) == {
        "dtype": "float32",
        "additional_config": {"mine": 1},
        "model": "some/model",
        "pipeline_parallel_size": 2,
        "tensor_parallel_size": 2,
    }
    assert (arguments.pipeline_parallel_size, arguments.tensor_parallel_size) == (2, 2)
    assert arguments.distributed_executor_backend is GrpcExecutor
    assert arguments.served_model_name == ["a", "b"]
    assert arguments.additional_config["mine"] == 1
    assert EngineCoreSettings.from_additional_config(arguments.additional_config) == settings


@pytest.mark.parametrize(("chosen", "told"), [(None, "node-b:0"), ("node-b:29500", "node-b:29500")])
def test_ranks_meet_where_the_scheduler_reaches_the_first_stage(chosen: str | None, told: str) -> None:
    """The stage may listen on 0.0.0.0, which is nowhere to the others."""
    replica = config(stages=[["node-b:50071"], ["node-c:50071"]], rendezvous=chosen)
    model = SimpleNamespace(hf_config=SimpleNamespace(to_json_string=lambda use_diff: "{}"))
    settings = core_settings(replica, "127.0.0.1:7", 5)
    first, second = configure_requests(settings, SimpleNamespace(model_config=model))
    assert (first.rendezvous_address, first.next_stage_address) == (told, "node-c:50071")
    assert second.next_stage_address == ""


@pytest.mark.parametrize(
    ("values", "scheduler"),
    [
        ({"stages": [["h:1"]]}, ForerunScheduler),
        ({"stages": [["h:1"]], "run_ahead": True}, RunAheadScheduler),
        ({"stages": [["h:1"], ["h:2"]]}, ForerunScheduler),
        ({"stages": [["h:1"], ["h:2"]], "speculation": {"draft_adapter": "a"}}, SpScheduler),
    ],
)
def test_the_scheduler_follows_from_stages_and_speculation(values: dict[str, Any], scheduler: type) -> None:
    assert scheduler_class(config(**values)) == f"{scheduler.__module__}.{scheduler.__qualname__}"


def test_the_stages_layers_follow_from_the_adapter_unless_they_are_given(tmp_path: Path) -> None:
    make_config(exit_layer=2).write(tmp_path)

    def layers(adapter: Path, given: list[int]) -> list[int]:
        stages = [["h:1"], ["h:2"]]
        replica = config(stages=stages, speculation={"draft_adapter": str(adapter)}, layer_partition=given)
        return core_settings(replica, "127.0.0.1:7", 5).layer_partition

    assert layers(tmp_path, []) == [2, 4]
    assert layers(tmp_path, [3, 3]) == [3, 3]
    assert layers(tmp_path / "elsewhere", []) == []


def test_without_stages_vllm_chooses_its_executor() -> None:
    alone = config(engine_args={"tensor_parallel_size": 1})
    arguments = engine_arguments(alone, core_settings(alone, "127.0.0.1:7", 5))
    assert arguments.distributed_executor_backend is None
    assert arguments.scheduler_cls == "services.scheduler.vllm_scheduler.ForerunScheduler"
    assert arguments.served_model_name == ["some/model"]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"engine_args": {"max_num_seq": 1}}, "engine_args.max_num_seq: .*did you mean max_num_seqs"),
        ({"engine_args": {"model": "x"}}, "engine_args.model: .*`model`"),
        ({"engine_args": {"scheduler_cls": "x"}}, "engine_args.scheduler_cls"),
        ({"stages": [["h:1"]], "engine_args": {"pipeline_parallel_size": 3}}, "it follows from `stages`"),
        ({"engine_args": {"async_scheduling": True}}, "set `run_ahead` instead"),
    ],
)
def test_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        core_settings(config(**values), "127.0.0.1:7", 5)
