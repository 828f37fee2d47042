"""Which splits are measured, and in which systems."""

from pathlib import Path
from typing import Any

import pytest

from services.cli.errors import CliError
from services.cli.local_config import LocalConfig
from services.cli.profile_splits import Adapter, Target, splits_to_measure, system_for
from services.scheduler.sp_split import Split
from tests.support.small_adapter import make_config

CPU = Target(layers=6, attention_heads=9, on_cuda=False)
HALF = Adapter(Path("half"), make_config(exit_layer=3))
QUARTER = Adapter(Path("quarter"), make_config(exit_layer=1))
BASE: dict[str, Any] = {
    "model": "m",
    "tls": None,
    "router": {"http_listen": "127.0.0.1:8000"},
    "start_timeout_s": 77,
    "replicas": [{"engine_args": {"dtype": "float32", "max_num_seqs": 4, "kv_cache_memory_bytes": 1000}}],
}


def names(*arguments: Any) -> list[str]:
    return [str(split) for split in splits_to_measure(*arguments)]


def test_two_devices() -> None:
    plain = ["PP 1, TP 2, SP 1", "PP 2, TP 1, SP 1 (3+3 layers)", "PP 2, TP 1, SP 1 (3+3 layers, one batch)"]
    assert names(2, CPU, [], []) == plain
    assert names(2, CPU, [HALF], []) == [*plain, "PP 1, TP 1, SP 2 (3+3 layers)"]


def test_given_layers_take_the_place_of_even_ones() -> None:
    assert names(2, CPU, [], [(4, 2), (5, 1)])[1:] == [
        "PP 2, TP 1, SP 1 (4+2 layers)",
        "PP 2, TP 1, SP 1 (5+1 layers)",
        "PP 2, TP 1, SP 1 (4+2 layers, one batch)",
    ]


def test_four_devices_combine_and_take_the_adapter_with_the_nearest_exit() -> None:
    splits = splits_to_measure(4, CPU, [HALF, QUARTER], [])
    assert {(split.pp, split.tp, split.sp) for split in splits} == {
        (1, 4, 1), (2, 2, 1), (4, 1, 1), (1, 2, 2), (1, 1, 4)
    }  # fmt: skip
    assert next(split.layers for split in splits if split.sp == 2) == (3, 3)
    assert next(split.layers for split in splits if split.sp == 4) == (1, 2, 2, 1)


def test_speculation_is_measured_with_the_given_layers_that_reach_the_exit() -> None:
    splits = splits_to_measure(2, CPU, [HALF], [(2, 4), (4, 2), (3, 3)])
    assert [split.layers for split in splits if split.sp == 2] == [(4, 2), (3, 3)]
    splits = splits_to_measure(2, CPU, [HALF], [(2, 4)])
    assert [split.layers for split in splits if split.sp == 2] == [(3, 3)]


def test_on_cuda_tensor_parallelism_needs_heads_that_divide() -> None:
    assert [split.tp for split in splits_to_measure(2, Target(6, 9, on_cuda=True), [], [])] == [1, 1]
    assert splits_to_measure(2, Target(6, 8, on_cuda=True), [], [])[0].tp == 2


@pytest.mark.parametrize("layers", [(4, 3), (2, 2, 2), (6, 0)], ids=str)
def test_layers_that_fit_no_split_are_refused(layers: tuple[int, ...]) -> None:
    with pytest.raises(CliError, match=r"--layers .*: must name the layers of each stage, 6 in all, .* divides 2"):
        splits_to_measure(2, CPU, [], [layers])


def test_devices_that_no_split_can_use_are_refused() -> None:
    with pytest.raises(CliError, match="--devices 7: no split of 6 layers over so many; give fewer"):
        splits_to_measure(7, Target(6, 9, on_cuda=True), [], [])


def test_a_system_keeps_the_engine_and_nothing_of_the_edge() -> None:
    config = system_for(Split(sp=2, layers=(3, 3)), BASE, [HALF], 32, on_cuda=False)
    parsed = LocalConfig.model_validate(config)
    (replica,) = parsed.replicas
    assert (parsed.start_timeout_s, parsed.router.http_listen, parsed.redis.start) == (77, None, False)
    assert (replica.pipeline_stages, replica.tensor_parallel, replica.layer_partition) == (2, 1, [3, 3])
    assert replica.speculation is not None
    assert (replica.speculation.mode, replica.speculation.draft_adapter) == ("always", Path("half").resolve())
    assert replica.engine_args == {
        "dtype": "float32", "max_num_seqs": 32, "kv_cache_memory_bytes": 1000, "enable_prefix_caching": True
    }  # fmt: skip


def test_devices_that_share_layers_are_one_process_with_the_memory_of_all_on_a_cpu() -> None:
    (replica,) = system_for(Split(tp=2), BASE, [], 2, on_cuda=False)["replicas"]
    assert (replica["pipeline_stages"], replica["tensor_parallel"]) == (1, 1)
    assert replica["engine_args"]["kv_cache_memory_bytes"] == 2000
    assert replica["engine_args"]["max_num_seqs"] == 4
    (replica,) = system_for(Split(tp=2), BASE, [], 2, on_cuda=True)["replicas"]
    assert replica["tensor_parallel"] == 2
    assert replica["engine_args"]["kv_cache_memory_bytes"] == 1000


def test_one_batch_is_told_to_the_scheduler() -> None:
    (replica,) = system_for(Split(pp=2, layers=(3, 3), micro_batching=False), BASE, [], 2, on_cuda=False)["replicas"]
    assert LocalConfig.model_validate({"model": "m", "replicas": [replica]}).replicas[0].micro_batching is False
