"""Profiles and plans: what a file may hold, what is predicted from it, and why."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from services.common.errors import ConfigError
from services.common.latency_profile import LatencyProfile
from services.scheduler.sp_pipeline import StaleRows
from services.scheduler.sp_planner import make_plan, shapes_of
from services.scheduler.sp_profile import Profile, SplitProfile, load_profile

MEMORY_BOUND = {"rows": [1, 16], "ms": [20.0, 22.0]}
DOCUMENT: dict[str, Any] = {
    "model": "m",
    "devices": 2,
    "splits": [
        {"pp": 2, "kv_sequences": 16, "stages": [MEMORY_BOUND, MEMORY_BOUND]},
        {"tp": 2, "kv_sequences": 16, "stages": [{"rows": [1, 16], "ms": [30.0, 33.0]}]},
        {
            "sp": 2,
            "kv_sequences": 16,
            "stages": [MEMORY_BOUND, MEMORY_BOUND],
            "draft": {"rows": [1, 16], "ms": [2.0, 3.0]},
            "acceptance": [0.4, 0.7, 0.9, 0.95],
        },
    ],
}


def refused(tmp_path: Path, document: object) -> str:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(document, indent=1))
    with pytest.raises(ConfigError) as error:
        load_profile(path)
    return str(error.value)


def changed(split: int, **fields: Any) -> dict[str, Any]:
    document = copy.deepcopy(DOCUMENT)
    document["splits"][split].update(fields)
    return document


def test_latency_is_linear_between_and_beyond_the_points() -> None:
    latency = LatencyProfile(rows=(2, 4, 8), ms=(10.0, 12.0, 20.0))
    assert [latency.at(rows) for rows in (0.5, 2, 3, 4, 6, 8, 16)] == [10.0, 10.0, 11.0, 12.0, 16.0, 20.0, 36.0]


def test_noise_does_not_make_large_batches_free() -> None:
    latency = LatencyProfile(rows=(1, 2), ms=(12.0, 10.0))
    assert latency.at(1.5) == 11.0
    assert latency.at(100) == 10.0


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (changed(0, stages=[MEMORY_BOUND]), ["splits.0", "pp x sp is 2 but stages has 1"]),
        (changed(2, draft=None), ["splits.2", "sp 2 needs draft; add draft"]),
        (changed(2, acceptance=[0.5, 1.5]), ["splits.2", "from 0 to 1"]),
        (changed(1, acceptance=[0.5]), ["splits.1", "sp 1 has no acceptance; remove acceptance, or raise sp"]),
        (changed(1, tp=4), ["splits.1", "must use all 2 devices"]),
        (changed(1, pp=2, tp=1, stages=[MEMORY_BOUND] * 2), ["splits.1", "is there twice; keep one"]),
        (changed(1, stages=[{"rows": [4, 2], "ms": [1.0, 2.0]}]), ["splits.1.stages.0", "rows must rise"]),
        (changed(1, stages=[{"rows": [1, 2], "ms": [1.0]}]), ["splits.1.stages.0", "2 rows but 1 ms"]),
        (changed(1, stages=[{"rows": [1, 2], "ms": [1.0, 0.0]}]), ["splits.1.stages.0.ms.1", "greater than 0"]),
        (changed(0, layers=[30]), ["splits.0", "layers names 1 stages, there are 2"]),
        (changed(1, micro_batching=False), ["splits.1", "micro_batching false is for pp above 1 and sp 1; remove it"]),
        (changed(0, kv_sequence=3), ["splits.0.kv_sequence", "did you mean kv_sequences?"]),
        ({"model": "m", "devices": 2}, ["splits", "missing; add it"]),
    ],
    ids=lambda value: value[1] if isinstance(value, list) else "",
)
def test_what_is_wrong_in_a_profile_is_named_with_its_fix(tmp_path: Path, document: object, words: list[str]) -> None:
    message = refused(tmp_path, document)
    assert "profile.json:" in message
    for word in words:
        assert word in message


def test_a_split_becomes_the_pipeline_that_it_describes() -> None:
    split = SplitProfile.model_validate({**DOCUMENT["splits"][2], "hop_ms": 0.5, "stale_rows": "skip_last"})
    pipeline = split.pipeline()
    assert (pipeline.depth, pipeline.micro_batches, pipeline.hop_ms) == (2, 1, 0.5)
    assert pipeline.stale_rows is StaleRows.SKIP_LAST
    assert [stage(16) for stage in pipeline.stages] == [25.0, 22.0]


def test_drafting_belongs_to_the_stage_where_the_first_part_of_the_model_ends() -> None:
    fields = {**DOCUMENT["splits"][2], "pp": 2, "stages": [MEMORY_BOUND] * 4}
    pipeline = SplitProfile.model_validate(fields).pipeline()
    assert [stage(16) for stage in pipeline.stages] == [22.0, 25.0, 22.0, 22.0]


def test_one_batch_takes_all_stages_in_turn_and_every_hop() -> None:
    document = changed(0, layers=[15, 15], micro_batching=False, hop_ms=0.5)
    document["splits"].append({**DOCUMENT["splits"][0], "layers": [15, 15]})
    plan = make_plan(Profile.model_validate(document), batch=16)
    one_batch = next(planned for planned in plan.ranked if not planned.split.micro_batching)
    assert one_batch.split.name == "PP 2, TP 1, SP 1 (15+15 layers, one batch)"
    assert one_batch.prediction.tokens_per_s == pytest.approx(1000 * 16 / (22.0 + 22.0 + 2 * 0.5))
    assert one_batch.reason == "the way around 2 stages with 16 rows a step; no stage is always busy"


def test_every_split_of_the_devices_is_listed_once() -> None:
    assert set(shapes_of(4)) == {(4, 1, 1), (1, 4, 1), (1, 1, 4), (2, 2, 1), (2, 1, 2), (1, 2, 2)}
    assert len(shapes_of(8)) == len(set(shapes_of(8))) == 10


def test_memory_bound_stages_make_speculation_the_pick_and_the_reason_says_why() -> None:
    plan = make_plan(Profile.model_validate(DOCUMENT))
    assert plan.pick.split.shape == (1, 1, 2)
    assert [planned.split.shape for planned in plan.ranked] == [(1, 1, 2), (1, 2, 1), (2, 1, 1)]
    assert plan.not_profiled == ()
    assert "stage 0 with drafting" in plan.pick.reason
    assert "advance, drafts 74% right" in plan.pick.reason
    by_hand = 1000 * 16 / (2 - 0.7375) / 25.0
    assert plan.pick.prediction.tokens_per_s == pytest.approx(by_hand)


def test_bad_drafts_make_micro_batches_the_pick() -> None:
    document = changed(2, acceptance=[0.0])
    document["splits"].pop(1)
    plan = make_plan(Profile.model_validate(document))
    assert plan.pick.split.shape == (2, 1, 1)
    assert plan.not_profiled == ((1, 2, 1),)


def test_a_batch_beyond_memory_or_profile_is_said_to_be_so() -> None:
    small = make_plan(Profile.model_validate(changed(0, kv_sequences=4)), batch=12).ranked
    limited = next(planned for planned in small if planned.split.pp == 2)
    assert limited.prediction.batch == 4
    assert "KV holds 4 of 12 sequences" in limited.reason
    large = make_plan(Profile.model_validate(changed(1, kv_sequences=40))).ranked
    extrapolated = next(planned for planned in large if planned.split.tp == 2)
    assert extrapolated.prediction.batch == 40
    assert "extrapolated beyond 16 rows" in extrapolated.reason


def test_a_single_request_makes_pipelines_wait_for_its_way_through() -> None:
    plan = make_plan(Profile.model_validate(DOCUMENT), batch=1)
    pipelined = next(planned for planned in plan.ranked if planned.split.pp == 2)
    assert pipelined.reason == "the way around 2 stages with 1 rows a step; no stage is always busy"


def test_a_fixed_drop_is_kept_to() -> None:
    plan = make_plan(Profile.model_validate(DOCUMENT), drop=0.25)
    speculating = next(planned for planned in plan.ranked if planned.split.sp == 2)
    assert speculating.prediction.speculation.drop == 0.25
    assert speculating.prediction.speculation.acceptance == pytest.approx(0.85)
    assert "25% dropped" in speculating.reason
