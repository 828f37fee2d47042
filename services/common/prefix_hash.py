"""Names of prompt prefixes by content: what a replica has cached and what a router looks for must hash alike.

vLLM's own block hashes will not do: they differ from process to process unless all share a seed, and routers have no
engine to ask. A collision costs a request a cache hit, nothing else.
"""

import hashlib
from array import array
from collections.abc import Sequence

HASH_BYTES = 8


def root_hash(block_size: int) -> str:
    """The name of the empty prefix, which every chain of blocks of ``block_size`` tokens starts from."""
    return hashlib.blake2b(f"forerun {block_size}".encode(), digest_size=HASH_BYTES).hexdigest()


def next_hash(parent: str, token_ids: Sequence[int]) -> str:
    """The name of the prefix that ends with one more block. ``token_ids``: the block's."""
    block = parent.encode() + array("I", token_ids).tobytes()
    return hashlib.blake2b(block, digest_size=HASH_BYTES).hexdigest()


def prefix_hashes(token_ids: Sequence[int], block_size: int, most: int) -> list[str]:
    """The names of a prompt's prefixes of 1, 2, ... whole blocks, at most ``most``.

    The last token is left out: it is always computed, so a block that ends with it is never taken from the cache.
    """
    hashes, parent = [], root_hash(block_size)
    for start in range(0, min((len(token_ids) - 1) // block_size, most) * block_size, block_size):
        parent = next_hash(parent, token_ids[start : start + block_size])
        hashes.append(parent)
    return hashes
