"""Seeds and prompts that are prefilled in pieces: upstream's gap. That our stages do not fall into it is tested in
``test_faults.py``.
"""

import inspect

import pytest
import torch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def test_upstream_still_sets_generators_back() -> None:
    """Fails when it no longer does: then ``vllm_stage._unfinished_prefills_keep_their_noise`` can go."""
    assert "gen.set_offset(gen.get_offset() - 4)" in inspect.getsource(GPUModelRunner._bookkeeping_sync)
    with pytest.raises(RuntimeError, match="CPU Generator does not use offset"):
        torch.Generator().get_offset()
