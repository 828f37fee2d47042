"""The target as plain vLLM in this process."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from services.workers.training.answer_shards import Answer
from services.workers.training.answers import AnswerOptions
from services.workers.training.prompt import Prompt

_ENVIRONMENT = {
    # In this process: nothing else runs beside it, and a Ctrl-C ends all of it.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_NO_USAGE_STATS": "1",
}


class VllmTarget:
    """Answers chat prompts, keeping the likeliest tokens at each position."""

    def __init__(self, model: Path, options: AnswerOptions) -> None:
        self._options = options
        self._tokenizer = AutoTokenizer.from_pretrained(str(model))
        self._engine = _engine(model, options)
        self._prompts: dict[str, list[int]] = {}

    def add(self, prompt: Prompt) -> bool:
        """Renders the chat and queues it; False when it is longer than allowed."""
        from vllm import SamplingParams  # noqa: PLC0415  (vLLM reads its environment when it is imported)
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        turns = [{"role": turn.role, "content": turn.content} for turn in prompt.messages]
        ids = self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]
        if len(ids) > self._options.max_prompt_tokens:
            return False
        self._prompts[prompt.id] = list(ids)
        sampling = SamplingParams(
            temperature=prompt.temperature,
            seed=int(prompt.id, 16) >> 1,
            max_tokens=self._options.max_answer_tokens,
            output_kind=RequestOutputKind.FINAL_ONLY,
            detokenize=False,
            logprobs=self._options.top,
            flat_logprobs=True,
        )
        self._engine.add_request(prompt.id, {"prompt_token_ids": self._prompts[prompt.id]}, sampling)
        return True

    def step(self) -> list[Answer]:
        """One step of the engine."""
        return [self._answer(output) for output in self._engine.step() if output.finished]

    def _answer(self, output: Any) -> Answer:
        completion = output.outputs[0]
        # vLLM puts the chosen token before the likeliest ones.
        shape = (-1, 1 + self._options.top)
        return Answer(
            prompt_id=output.request_id,
            prompt=np.array(self._prompts.pop(output.request_id), np.int32),
            answer=np.array(completion.token_ids, np.int32),
            top_ids=np.array(completion.logprobs.token_ids, np.int32).reshape(shape)[:, 1:],
            top_logprobs=np.array(completion.logprobs.logprobs, np.float16).reshape(shape)[:, 1:],
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
