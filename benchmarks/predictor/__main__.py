"""``python -m benchmarks.predictor``: how long the predictor takes, over gRPC, and what its answers are worth.

The sidecar runs in a process of its own, as ``forerun up`` starts it; the states are random, which costs the same.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from forerun.predictor.v1 import service_pb2 as pb
from forerun.predictor.v1 import service_pb2_grpc
from rich.progress import track

from benchmarks.report import Figure, print_figures, write_report
from services.cli.ports import PortPicker
from services.cli.readiness import SERVING, health_of
from services.common.rpc import aio_channel
from services.predictor.model_config import RemainingLengthConfig

NAME = "predictor"
ROWS = (1, 8, 64, 256)
START_TIMEOUT_S = 30.0


def main() -> None:
    """Measures and writes the report."""
    options = _options()
    ports = PortPicker()
    address = ports.resolve("127.0.0.1:0")
    ports.release()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "predictor.json"
        config.write_text(json.dumps({"server": {"listen": address}, "models": [str(options.predictor.resolve())]}))
        command = [sys.executable, "-m", "services.predictor", "--config", str(config)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                figures = asyncio.run(_measure(address, options))
            finally:
                process.terminate()
    figures |= _worth(options.predictor)
    print_figures(figures)
    if not options.no_report:
        write_report(NAME, figures, (Path(__file__).parent / "page.md").read_text())


async def _measure(address: str, options: argparse.Namespace) -> dict[str, Figure]:
    async with asyncio.timeout(START_TIMEOUT_S):
        while await health_of(address, None) != SERVING:
            pass  # a channel that finds nobody takes its time
    config = RemainingLengthConfig.read(options.predictor)
    took: dict[int, list[float]] = {rows: [] for rows in ROWS}
    async with aio_channel(address) as channel:
        stub = service_pb2_grpc.PredictorServiceStub(channel)
        requests = {rows: _request(config, rows) for rows in ROWS}
        for request in requests.values():
            await stub.PredictRemaining(request)
        for _ in track(range(options.rounds), "calls"):
            for rows, request in requests.items():
                times = []
                for _ in range(options.calls):
                    began = time.perf_counter()
                    await stub.PredictRemaining(request)
                    times.append(1e3 * (time.perf_counter() - began))
                took[rows].append(median(times))
    return {f"predictor_ms_{rows}": Figure.of(values, "ms") for rows, values in took.items()}


def _request(config: RemainingLengthConfig, rows: int) -> pb.PredictRemainingRequest:
    states = np.random.default_rng(0).normal(size=(rows, config.hidden_size)).astype("<f2")
    return pb.PredictRemainingRequest(
        target_fingerprint=config.target_fingerprint,
        layer=config.layer,
        states=states.tobytes(),
        answer_tokens=range(rows),
    )


def _worth(predictor: Path) -> dict[str, Figure]:
    """From the report beside the model, which its training measured on answers that it had not seen."""
    report = json.loads((predictor / "report.json").read_text())
    names = ("precision_min", "recall_mean", "recall_min")
    return {f"predictor_{name}": Figure.of([report[name]], "ratio") for name in names}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predictor", description=__doc__)
    parser.add_argument(
        "--predictor", type=Path, default=Path("models/smollm2-135m/predictor-15"), help="the model's folder"
    )
    parser.add_argument("--calls", type=int, default=100, help="of each size in a round, whose median counts")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved repetitions")
    parser.add_argument("--no-report", action="store_true", help="print the figures, leave the report as it is")
    return parser.parse_args()


if __name__ == "__main__":
    main()
