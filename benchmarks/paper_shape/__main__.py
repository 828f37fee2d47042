"""``python -m benchmarks.paper_shape``: whether the cost model has the shape of Spexis' published results.

No GPU is used: device profiles are computed from data sheets (``devices.py``), planned as ``forerun plan`` does, and
run through the simulation of the machine. What no publication says is varied; a figure is the median over all
combinations, between the lowest and the highest.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from benchmarks.paper_shape.devices import A40, A100_SXM, L40S, LLAMA_70B, Assumptions, Cluster, Gpu
from benchmarks.paper_shape.profiles import make_profile
from benchmarks.report import Figure, write_report
from services.scheduler.sp_planner import Shape, plan_split, shapes_of
from services.scheduler.sp_profile import Profile
from services.scheduler.sp_simulation import simulate

HALF_EXIT = (0.60, 0.70, 0.79)
"""Acceptance with half of the layers, lowest to highest in the paper (section 7.4)."""
QUARTER_EXIT = (0.51, 0.57, 0.63)
"""And with a quarter."""
BATCHES = (16, 64, 128, 256)
"""Section 7.1: decoding throughput was measured at 16 to 256."""
NODES = ((A40, 8), (L40S, 8), (A100_SXM, 8), (A40, 4), (A100_SXM, 4))
"""L40S are on PCIe like A40s, A100 SXM on NVLink."""
CHECKED_BATCH, CHECKED_STEPS = 64, 1500

Values = dict[str, list[float]]


def main() -> None:
    """Evaluates every combination of assumptions and writes the report."""
    options = _options()
    values: Values = defaultdict(list)
    for assumptions, acceptance in product(_assumptions(), _acceptances()):
        for batch in BATCHES:
            _two_stages(assumptions, acceptance, batch, values)
            for gpu, devices in NODES:
                _one_node(gpu, devices, assumptions, acceptance, batch, values)
    for acceptance in _acceptances():
        _simulated(next(_assumptions()), acceptance, values)
    figures = {key: Figure.of(values[key], "ratio") for key in sorted(values, key=_in_order)}
    for key, figure in figures.items():
        print(f"{key:32} {figure.median:8.3f}  [{figure.low:.3f}, {figure.high:.3f}]  {figure.runs}")
    if not options.no_report:
        write_report("paper-shape", figures, (Path(__file__).parent / "page.md").read_text())


def _in_order(key: str) -> tuple[str, int]:
    """By comparison, then by batch."""
    comparison, _, batch = key.partition("_b")
    return comparison, int(batch or 0)


def _assumptions() -> Iterator[Assumptions]:
    for context, (bandwidth, compute), slowness in product((512, 1024), ((0.7, 0.5), (0.85, 0.7)), (1.0, 2.0)):
        yield Assumptions(context, bandwidth, compute, nvlink_step_us=1.0 * slowness, pcie_step_us=2.5 * slowness)


def _acceptances() -> Iterator[dict[int, float]]:
    for half, quarter in zip(HALF_EXIT, QUARTER_EXIT, strict=True):
        yield {2: half, 4: quarter}


def _two_stages(assumptions: Assumptions, acceptance: dict[int, float], batch: int, values: Values) -> None:
    """Two nodes of four GPUs, one stage each: speculation against micro-batches, with and without dropping."""
    profile = _profile(A40, 8, assumptions, acceptance, batch, [(2, 4, 1), (1, 4, 2)])
    pipeline, speculation = (_throughput(profile, shape, batch) for shape in ((2, 4, 1), (1, 4, 2)))
    without_drop = _throughput(profile, (1, 4, 2), batch, drop=0.0)
    values[f"two_stages_sp_vs_pp_b{batch}"].append(speculation / pipeline)
    values[f"two_stages_drop_gain_b{batch}"].append(speculation / without_drop)


def _one_node(
    gpu: Gpu, devices: int, assumptions: Assumptions, acceptance: dict[int, float], batch: int, values: Values
) -> None:
    """The best split with speculation over TP alone and over the best with PP."""
    shapes = [shape for shape in shapes_of(devices) if shape[2] in (1, *acceptance)]
    profile = _profile(gpu, devices, assumptions, acceptance, batch, shapes)
    tensor_parallel = _throughput(profile, (1, devices, 1), batch)
    pipelined = max(_throughput(profile, shape, batch) for shape in shapes if shape[0] > 1 and shape[2] == 1)
    speculative = max(_throughput(profile, shape, batch) for shape in shapes if shape[2] > 1)
    values[f"{devices}_{gpu.name}_sp_vs_tp_b{batch}"].append(speculative / tensor_parallel)
    values[f"{devices}_{gpu.name}_sp_vs_pp_b{batch}"].append(speculative / pipelined)


def _profile(
    gpu: Gpu, devices: int, assumptions: Assumptions, acceptance: dict[int, float], batch: int, shapes: list[Shape]
) -> Profile:
    return make_profile(Cluster(gpu, devices, LLAMA_70B, assumptions), shapes, acceptance, batch)


def _throughput(profile: Profile, shape: Shape, batch: int, drop: float | None = None) -> float:
    split = next(split for split in profile.splits if split.shape == shape)
    return plan_split(split, batch, drop).prediction.tokens_per_s


def _simulated(assumptions: Assumptions, acceptance: dict[int, float], values: Values) -> None:
    """Every split of eight GPUs, run by the simulation, against its prediction."""
    shapes = [shape for shape in shapes_of(8) if shape[2] in (1, *acceptance)]
    profile = _profile(A40, 8, assumptions, acceptance, CHECKED_BATCH, shapes)
    for split in profile.splits:
        prediction = plan_split(split, CHECKED_BATCH, drop=None).prediction
        seen = simulate(
            split.pipeline(), CHECKED_BATCH, split.curve(), prediction.speculation.drop, steps=CHECKED_STEPS
        )
        values["simulation_vs_closed_form"].append(seen.tokens_per_s / prediction.tokens_per_s)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_shape", description=__doc__)
    parser.add_argument("--no-report", action="store_true", help="print the figures, leave the report as it is")
    return parser.parse_args()


if __name__ == "__main__":
    main()
