"""Plain vLLM in a process of its own: the baseline, frozen while something else is measured.

Freezing matters: stock vLLM's pipeline processes spin while they wait, which on two cores would halve whatever
runs beside them.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Answer:
    """One request's tokens and when each came, on the monotonic clock."""

    tokens: list[int]
    times: list[float]
    started: float


class PlainVllm:
    """A context manager. ``thawed`` runs it; outside of that it is stopped by SIGSTOP."""

    def __init__(self, engine_args: Mapping[str, Any], environment: Mapping[str, str], cores: Sequence[int]) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._ours, theirs = self._context.Pipe()
        arguments = (theirs, dict(engine_args), dict(environment), list(cores))
        self._process = self._context.Process(target=_serve, args=arguments, daemon=False)

    def __enter__(self) -> Self:
        self._process.start()
        self._receive()
        self._signal(signal.SIGSTOP)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signal(signal.SIGKILL)
        self._process.join()

    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, *, one_by_one: bool = False, seed: int | None = None
    ) -> list[Answer]:
        """Greedy (or seeded, at temperature 1) answers of exactly ``max_tokens`` tokens, in batch or one by one."""
        self._signal(signal.SIGCONT)
        try:
            self._ours.send((list(prompts), max_tokens, one_by_one, seed))
            answers: list[Answer] = self._receive()
            return answers
        finally:
            self._signal(signal.SIGSTOP)

    def _receive(self) -> Any:
        while not self._ours.poll(1.0):
            if not self._process.is_alive():
                raise RuntimeError(f"plain vLLM ended with {self._process.exitcode}")
        result = self._ours.recv()
        if isinstance(result, BaseException):
            raise result
        return result

    def _signal(self, number: signal.Signals) -> None:
        # To the whole group: stock pipeline parallelism has processes of its own. The group has the child's id.
        try:
            os.killpg(self._process.pid or 0, number)
        except ProcessLookupError:
            return


def _serve(connection: Connection, engine_args: dict[str, Any], environment: dict[str, str], cores: list[int]) -> None:
    os.setpgid(0, 0)
    os.sched_setaffinity(0, cores)
    os.environ.update(environment)
    try:
        engine = _engine(engine_args)
    except BaseException as error:  # noqa: BLE001  the parent reports it
        connection.send(RuntimeError(f"plain vLLM did not start: {error}"))
        return
    connection.send("ready")
    while True:
        prompts, max_tokens, one_by_one, seed = connection.recv()
        groups = [[prompt] for prompt in prompts] if one_by_one else [prompts]
        connection.send([answer for group in groups for answer in _batch(engine, group, max_tokens, seed)])


def _engine(engine_args: dict[str, Any]) -> Any:
    from vllm import EngineArgs, LLMEngine  # noqa: PLC0415  the environment must be set first

    return LLMEngine.from_engine_args(EngineArgs(**engine_args))


def _batch(engine: Any, prompts: list[list[int]], max_tokens: int, seed: int | None) -> list[Answer]:
    from vllm import SamplingParams  # noqa: PLC0415
    from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

    sampling = SamplingParams(
        temperature=0.0 if seed is None else 1.0,
        seed=seed,
        max_tokens=max_tokens,
        ignore_eos=True,
        output_kind=RequestOutputKind.DELTA,
    )
    started = time.monotonic()
    answers = [Answer([], [], started) for _ in prompts]
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), {"prompt_token_ids": prompt}, sampling)
    while engine.has_unfinished_requests():
        for output in engine.step():
            now = time.monotonic()
            answer = answers[int(output.request_id)]
            tokens = list(output.outputs[0].token_ids)
            answer.tokens.extend(tokens)
            answer.times.extend([now] * len(tokens))
    return answers
