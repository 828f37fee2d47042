"""Noise that two stages share: the seed of one sampled token is a function of its request and its place.

Drawing the draft with the very noise that the sampler will use makes the two agree more often (common random
numbers), and a seed that depends on nothing that happened before keeps a seeded answer the same however often a step
was run in vain (own derivation; design section 4).
"""

from hashlib import blake2b

_SEED_BITS = 63


def request_seed(seed: int | None, request_id: str, generation: int) -> int:
    """The user's seed, or one that no other request has."""
    if seed is not None:
        return seed
    return _mix(f"{generation}|{request_id}")


def token_seed(request_seed: int, output_index: int) -> int:
    """The seed of a request's ``output_index``-th sampled token, from 0; in 63 bits."""
    return _mix(f"{request_seed}#{output_index}")


def _mix(key: str) -> int:
    digest = blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _SEED_BITS)
