"""Options that vLLM refuses where an engine can speculate, for requests that do not.

Upstream gap (vLLM 0.32): with a ``speculative_config`` the runner leaves out the logits processors of ``min_p`` and
``logit_bias``, since they cannot judge drafts, and the front refuses such requests. A request that never drafts has a
row of the ordinary kind, which they handle; so they are added here, and the scheduler keeps drafts from such requests.
tests/e2e/test_experts.py fails when upstream has them by itself.
"""

from typing import Any

from vllm.config import VllmConfig
from vllm.utils.platform_utils import is_pin_memory_available
from vllm.v1.sample.logits_processor import LogitBiasLogitsProcessor, MinPLogitsProcessor


def keep_plain_options(runner: Any, config: VllmConfig) -> None:
    """Adds what is missing to the runner's processors. Raises ``RuntimeError`` when nothing is."""
    processors = runner.input_batch.logitsprocs
    present = {type(each) for each in processors.all}
    for processor in (MinPLogitsProcessor, LogitBiasLogitsProcessor):
        if processor in present:
            raise RuntimeError(f"vLLM has {processor.__name__} where it speculates; vllm_plain_options is needless")
        made = processor(config, runner.device, is_pin_memory_available())
        kind = processors.argmax_invariant if made.is_argmax_invariant() else processors.non_argmax_invariant
        kind.append(made)
