"""A split that speculates is started and measured, by the real stages' own counters."""

from pathlib import Path

import pytest
from transformers import AutoConfig

from benchmarks.random_adapter import write_random_adapter
from benchmarks.systems import forerun_config
from services.cli.profile_splits import Target, read_adapters
from services.cli.profiler import Profiler, Schedule
from services.cli.train_progress import train_progress
from services.scheduler.sp_planner import plan_split
from services.scheduler.sp_split import Split

pytestmark = pytest.mark.timeout(300)


def test_two_stages_that_speculate(model_path: Path, tmp_path: Path) -> None:
    model = AutoConfig.from_pretrained(model_path)
    base = forerun_config(model_path, 1, "float32", max_model_len=2048, kv_cache_memory_bytes=128 << 20)
    with train_progress() as listen:
        profiler = Profiler(
            base=base,
            adapters=read_adapters([write_random_adapter(tmp_path, model_path, 15)]),
            target=Target(model.num_hidden_layers, model.num_attention_heads, on_cuda=False),
            schedule=Schedule(rows=(1, 4), seconds=0.5),
            context=512,
            listen=listen,
        )
        (profile,) = profiler.measure([Split(sp=2, layers=(15, 15))], balance=False)
    first, last = profile.stages
    assert first.rows == (1.0, 4.0), "every sequence has a row in each step, right or wrong"
    assert last.rows[1] < 4.0, "the last stage leaves out the stale ones"
    assert all(ms > 1 for ms in (*first.ms, *last.ms))
    assert profile.draft is not None and min(profile.draft.ms) > 0
    assert profile.acceptance is not None and 0 < sum(profile.acceptance) < len(profile.acceptance)
    assert profile.kv_sequences > 4
    assert plan_split(profile, 4, drop=0.0).prediction.tokens_per_s > 1
