"""A kernel of vLLM's rejection sampler, put right where there is no Triton.

Upstream gap (vLLM 0.32): on CPUs without Triton, the stand-in for ``expand_kernel`` works on 64-bit copies of its
tensors and drops the copy that holds its result. So the temperature, top-k and top-p of rows with drafts are whatever
lay in memory: answers at a temperature are distributed wrongly, and greedy ones beside them can take the least likely
token.
tests/e2e/test_experts.py fails when upstream writes the result.
"""

import torch
from torch import Tensor

EXPAND = "vllm.v1.sample.rejection_sampler.expand_kernel"


def expand(
    output_ptr: Tensor,
    input_ptr: Tensor,
    cu_num_tokens_ptr: Tensor,
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int | None = None,  # noqa: ARG001, N803  (vLLM's name; the kernel's own bound)
) -> None:
    """Repeats each request's value for each of its tokens, as vLLM's Triton kernel does.

    Args:
        output_ptr: [tokens], written.
        input_ptr: [requests].
        cu_num_tokens_ptr: [requests], tokens up to and with each request's.
        replace_from: a value that becomes
        replace_to: this one.
    """
    counts = torch.diff(cu_num_tokens_ptr, prepend=cu_num_tokens_ptr.new_zeros(1))
    values = torch.where(input_ptr == replace_from, torch.full_like(input_ptr, replace_to), input_ptr)
    output_ptr.copy_(values.repeat_interleave(counts.long()))


def mend_cpu_kernels() -> None:
    """Registers it with vLLM's table of kernels, after the worker has registered vLLM's own; does nothing elsewhere."""
    from vllm.triton_utils import HAS_TRITON  # noqa: PLC0415  (vLLM starts with it)
    from vllm.triton_utils.dispatcher import register_kernels  # noqa: PLC0415

    if not HAS_TRITON:
        register_kernels({EXPAND: expand})
