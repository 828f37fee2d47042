"""The target as plain vLLM in this process."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from services.common.training.answer_shards import Answer
from services.common.training.answers import AnswerOptions
from services.common.training.chat_rendering import prompt_renderer
from services.common.training.prompt import Prompt

_ENVIRONMENT = {
    # In this process: nothing else runs beside it, and a Ctrl-C ends all of it.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_NO_USAGE_STATS": "1",
}


class VllmTarget:
    """Answers chat prompts, as many at once as the options say."""

    def __init__(self, model: Path, options: AnswerOptions) -> None:
        self._options = options
        self._render = prompt_renderer(model, options.max_prompt_tokens)
        self._engine = _engine(model, options)
        self._prompts: dict[str, list[int]] = {}

    def add(self, prompt: Prompt) -> bool:
        """Renders the chat and queues it; False when it is longer than allowed."""
        from vllm import SamplingParams  # noqa: PLC0415  (vLLM reads its environment when it is imported)
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        if (ids := self._render(prompt)) is None:
            return False
        self._prompts[prompt.id] = ids
        sampling = SamplingParams(
            temperature=prompt.temperature,
            seed=int(prompt.id, 16) >> 1,
            max_tokens=self._options.max_answer_tokens,
            output_kind=RequestOutputKind.FINAL_ONLY,
            detokenize=False,
        )
        self._engine.add_request(prompt.id, {"prompt_token_ids": ids}, sampling)
        return True

    def step(self) -> list[Answer]:
        """One step of the engine."""
        return [self._answer(output) for output in self._engine.step() if output.finished]

    def _answer(self, output: Any) -> Answer:
        return Answer(
            prompt_id=output.request_id,
            prompt=np.array(self._prompts.pop(output.request_id), np.int32),
            answer=np.array(output.outputs[0].token_ids, np.int32),
        )


def _engine(model: Path, options: AnswerOptions) -> Any:
    os.environ.update(_ENVIRONMENT)
    from vllm import EngineArgs, LLMEngine  # noqa: PLC0415  (the environment must be set first)

    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model),
            dtype=options.dtype,
            enforce_eager=True,
            # On a CPU, vLLM 0.32 fails on a seeded request whose prompt is prefilled in pieces.
            enable_chunked_prefill=False,
            max_num_batched_tokens=4 * (options.max_prompt_tokens + options.max_answer_tokens),
            max_model_len=options.max_prompt_tokens + options.max_answer_tokens,
            max_num_seqs=options.batch,
            kv_cache_memory_bytes=options.kv_cache_bytes,
            gpu_memory_utilization=0.1,
        )
    )
