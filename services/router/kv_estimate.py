"""How many KV blocks a request is expected to need, for choosing a replica and reserving blocks on it.

The estimate: the prompt's blocks once, since choices share them, and for each of the n choices the blocks of the
output it is expected to grow to. Expected output is what the request allows (``max_tokens``, the room that the
context leaves) and at most ``expected_output_tokens``: most answers end long before their limit, and reserving the
whole limit would refuse requests that fit. Each part is rounded up, so the estimate errs on the large side.
"""

import math

from services.common.types import ReplicaInfo, SamplingOptions


def blocks_needed(prompt_tokens: int, sampling: SamplingOptions, replica: ReplicaInfo, expected_tokens: int) -> int:
    """KV blocks; at least one, at most the replica's pool, so that a lone request is never refused for its size."""
    block_size = max(1, replica.block_size)
    room = max(1, replica.max_model_len - prompt_tokens)
    output_tokens = min(room, expected_tokens, sampling.max_tokens or room)
    blocks = math.ceil(prompt_tokens / block_size) + sampling.n * math.ceil(output_tokens / block_size)
    return max(1, min(blocks, replica.total_blocks) if replica.total_blocks else blocks)
