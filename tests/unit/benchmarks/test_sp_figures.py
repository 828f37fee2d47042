"""What the benchmark of speculation makes of the runs it measured."""

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.plain_vllm import Answer
from benchmarks.questions import questions
from benchmarks.report import Figure
from benchmarks.sp.comparison import Comparison, Workload
from benchmarks.sp.findings import Findings
from benchmarks.sp.latency import Load, arrivals, knee, report_latency
from benchmarks.sp.related import figures_of_speculation
from benchmarks.sp.systems import Run, read_adapter
from benchmarks.sp.throughput import report_throughput
from services.common.errors import ConfigError


def run(tokens_per_s: float, tokens: list[int]) -> Run:
    times = [index / tokens_per_s for index in range(len(tokens))]
    return Run([Answer(tokens, times, 0.0)], drafted=4, accepted=3)


def comparison(**systems: list[float]) -> Comparison:
    """Two rounds at batch 2, by system."""
    return Comparison({(name, 2): [run(each, [5, 6, 7]) for each in speeds] for name, speeds in systems.items()})


def test_the_gain_is_over_the_pipeline_with_the_best_median_round_by_round() -> None:
    findings = Findings()
    report_throughput(comparison(sp=[30, 30], micro=[10, 40], whole=[20, 32], stock=[9, 9]), [2], 2, findings)
    assert findings.details["best_pp"] == {"b2": "whole"}
    assert findings.values["sp_vs_best_pp_b2"] == pytest.approx([1.5, 30 / 32])
    assert findings.values["sp_acceptance_b2"] == [0.75, 0.75]
    assert findings.values["sp_same_text_as_micro_b2"] == [1.0, 1.0]
    assert "sp_vs_one_process_b2" not in findings.values


def test_tokens_behind_the_end_are_counted() -> None:
    findings = Findings()
    report_throughput(comparison(sp=[1.0], micro=[1.0]), [2], 6, findings)
    assert findings.values["tokens_after_end_of_answer"] == pytest.approx([1 / 3])


def test_each_round_and_batch_has_prompts_of_its_own() -> None:
    workload = Workload([[number] for number in range(12)], [2, 4], tokens=10)
    taken = [prompt for number in range(2) for batch in (2, 4) for prompt in workload.of(number, batch)]
    assert taken == [[number] for number in range(12)]
    assert workload.of(2, 2) == [[0], [1]], "and from the start again"


def test_the_knee_is_the_last_rate_before_latency_doubles() -> None:
    loads = [Load(0.5, 1.0, [10, 12], [8, 8]), Load(0.7, 1.4, [18, 20], [9, 10]), Load(0.9, 1.8, [24, 30], [9, 9])]
    assert knee(loads) is loads[1]
    assert knee([*loads, Load(1.1, 2.2, [11, 11], [9, 9])]) is loads[1], "what comes after it does not count"
    findings = Findings()
    report_latency(loads, findings)
    assert findings.values["sp_latency_ratio_knee"] == [2.0, 2.0]
    assert findings.values["pp_latency_ms_at_load_90"] == [24, 30]


def test_arrivals_are_a_poisson_process_from_the_seed() -> None:
    coming = arrivals([[1], [2]], 4000, requests_per_s=2.0, seed=3)
    assert coming == arrivals([[1], [2]], 4000, requests_per_s=2.0, seed=3)
    assert coming[-1].at_s == pytest.approx(2000, rel=0.05)
    gaps = [later.at_s - earlier.at_s for earlier, later in pairwise(coming)]
    assert sum(gap > 0.5 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03), (
        "exponential: 1/e over the mean"
    )


def test_questions_are_many_and_of_four_kinds_in_turn() -> None:
    everything = questions()
    assert len(set(everything)) > 250
    assert all("function" in each or "code" in each for each in everything[1::4])


def test_figures_of_other_reports_are_repeated_with_their_origin(tmp_path: Path) -> None:
    assert figures_of_speculation(tmp_path / "none", tmp_path) == ({}, {})
    error = Figure.of([0.07], "ratio")
    origin = {"git_sha": "abc", "date": "today", "command": "python -m benchmarks.planner"}
    report = {"figures": {"planner_error_max": asdict(error), "another": {}}, "provenance": origin | {"machine": {}}}
    (tmp_path / "planner.json").write_text(json.dumps(report))
    (tmp_path / "report.json").write_text(json.dumps({"overall": {"share": 0.64}, "confident": {"share": 0.75}}))
    figures, origins = figures_of_speculation(tmp_path, tmp_path)
    assert {name: figure.median for name, figure in figures.items()} == {
        "planner_error_max": 0.07,
        "agreement": 0.64,
        "agreement_top80": 0.75,
    }
    assert origins == {"planner": origin, "adapter": str(tmp_path)}


def test_without_an_adapter_the_error_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="forerun train adapter"):
        read_adapter(tmp_path / "adapter-15")
