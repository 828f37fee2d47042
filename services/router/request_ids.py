"""Request ids of clients that never promised ours: HTTP clients may send any, and the same one twice."""

import re
import secrets
from collections.abc import Callable

_ILLEGAL = re.compile(r"[^A-Za-z0-9_.:-]")
_LONGEST = 119
"""Of the 128 characters of an id, what leaves room for the suffix."""


def wire_request_id(asked: str, is_taken: Callable[[str], bool]) -> str:
    """A legal, unused id that still reads like the one asked for."""
    legal = _ILLEGAL.sub("_", asked)[:_LONGEST]
    if not legal or is_taken(legal):
        return f"{legal}-{secrets.token_hex(4)}"
    return legal
