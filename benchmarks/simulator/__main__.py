"""``python -m benchmarks.simulator``: the simulated replica against the real one, then fleets that cannot be run here.

The first part replays the requests of ``reports/lookahead.json``, with the step times that were measured there.
"""

import argparse
import json
import sys
from pathlib import Path

from rich.progress import track

from benchmarks.report import REPORTS, Figure, print_figures, write_report
from benchmarks.simulator.fleets import FleetResult, run_fleet
from benchmarks.simulator.replay import replay

NAME = "simulator"
POLICIES = ("aggressive", "reserve-full", "lookahead")


def main() -> int:
    """Runs both parts and writes the report. Returns the exit code."""
    options = _options()
    if not options.real.is_file():
        print(f"--real: {options.real} does not exist; run `python -m benchmarks.lookahead` first", file=sys.stderr)
        return 2
    figures = _replay_figures(options.real) | _fleet_figures(options)
    print_figures(figures)
    if not options.no_report:
        write_report(NAME, figures, (Path(__file__).parent / "page.md").read_text())
    return 0


def _replay_figures(real: Path) -> dict[str, Figure]:
    replayed = replay(json.loads(real.read_text())["details"])
    errors = [max(each.throughput_error, each.preemption_error) for each in replayed]
    figures = {"simulator_error": Figure.of([max(errors)], "ratio")}
    for each in replayed:
        for kind, (measured, simulated), unit in (
            ("tokens_per_s", each.throughput, "tokens/s"),
            ("preemptions", each.preemptions, "count"),
        ):
            figures[f"{each.name}_{kind}_real"] = Figure.of([measured], unit)
            figures[f"{each.name}_{kind}_simulated"] = Figure.of([simulated], unit)
    return figures


def _fleet_figures(options: argparse.Namespace) -> dict[str, Figure]:
    runs: dict[tuple[int, str], list[FleetResult]] = {}
    plan = [(size, policy, seed) for size in options.replicas for policy in POLICIES for seed in range(options.rounds)]
    for size, policy, seed in track(plan, "fleets"):
        result = run_fleet(policy, size, options.requests, options.rate, seed)
        runs.setdefault((size, policy), []).append(result)
    figures = {}
    for (size, policy), results in runs.items():
        name = f"fleet{size}_{policy}"
        figures |= {
            f"{name}_tokens_per_s": Figure.of([each.tokens_per_s for each in results], "tokens/s"),
            f"{name}_normalized_ms": Figure.of([each.normalized_ms for each in results], "ms/token"),
            f"{name}_preemptions": Figure.of([each.preemptions for each in results], "count"),
            f"{name}_queue_p99_s": Figure.of([each.p99_queue_s for each in results], "s"),
        }
    return figures


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator", description=__doc__)
    parser.add_argument("--real", type=Path, default=REPORTS / "lookahead.json", help="the report to be replayed")
    parser.add_argument("--replicas", type=int, nargs="+", default=[8, 64], help="sizes of the fleets")
    parser.add_argument("--requests", type=int, default=200, help="for each replica of a fleet")
    parser.add_argument("--rate", type=float, default=4.0, help="requests per second and replica")
    parser.add_argument("--rounds", type=int, default=3, help="with other arrivals each")
    parser.add_argument("--no-report", action="store_true", help="print the figures, leave the report as it is")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
