"""The real run of ``benchmarks/lookahead`` once more, on a simulated replica: how far apart are the two?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from benchmarks.lookahead.calibration import StepTimes
from benchmarks.simulator.fleet import Clock, simulate
from benchmarks.simulator.replica import Job, ReplicaShape, SimulatedReplica
from services.scheduler.lookahead.config import AdmissionConfig
from services.scheduler.lookahead.policies import make_policy


@dataclass(frozen=True, slots=True)
class Replayed:
    """One policy, over all rounds."""

    name: str
    throughput: tuple[float, float]
    """Tokens per second, real and simulated."""
    preemptions: tuple[float, float]
    """In all, real and simulated."""

    @property
    def throughput_error(self) -> float:
        """Of the simulation, relative."""
        real, simulated = self.throughput
        return abs(simulated / real - 1)

    @property
    def preemption_error(self) -> float:
        """Of the simulation, relative; 0 where there were none in either."""
        real, simulated = self.preemptions
        return abs(simulated - real) / real if real else float(simulated > 0)


def replay(details: Mapping[str, Any]) -> list[Replayed]:
    """Every system of the report that ``details`` come from."""
    return [_replay(name, runs, details) for name, runs in details["runs"].items()]


def mean_step_times(measured: Sequence[Mapping[str, Any]]) -> StepTimes:
    """Over the calibrations, since a machine's speed drifts."""
    return StepTimes(
        batches=tuple(measured[0]["batches"]),
        decode_s=tuple(mean(each) for each in zip(*(times["decode_s"] for times in measured), strict=True)),
        prefill_fixed_s=mean(times["prefill_fixed_s"] for times in measured),
        prefill_token_s=mean(times["prefill_token_s"] for times in measured),
    )


def _replay(name: str, runs: Sequence[Mapping[str, Any]], details: Mapping[str, Any]) -> Replayed:
    options = details["options"]
    shape = ReplicaShape(
        blocks=details["kv_blocks"][name],
        block_size=int(details["block_size"]),
        max_num_seqs=int(options["max_num_seqs"]),
    )
    policy = AdmissionConfig(policy=name.removesuffix("_ample"), max_delay_s=options["max_delay"])
    step_times = mean_step_times(details["step_times"])
    # One replica for all rounds: what it has learned of the answers' lengths stays.
    clock = Clock()
    replica = SimulatedReplica(shape, step_times, make_policy(policy), clock)
    real, simulated = [], []
    for number, run in enumerate(runs):
        began = clock.now
        jobs = [
            Job(f"{number}-{index}", began + at_s, prompt, answer if answer < limit else limit + 1, limit)
            for index, (at_s, prompt, limit, answer) in enumerate(run["requests"])
        ]
        ended = simulate([replica], clock, jobs)
        real.append(sum(answer for *_, answer in run["requests"]) / run["seconds"])
        simulated.append(sum(job.generated for job in ended) / (clock.now - began))
    counted = sum(run["preemptions"] for run in runs)
    return Replayed(name, (mean(real), mean(simulated)), (counted, replica.totals.preemptions))
