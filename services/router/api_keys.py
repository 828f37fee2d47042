"""The keys that open the edge, compared in constant time. One object for both edges."""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from services.common.errors import ConfigError


class ApiKeys:
    """Without keys everything is open."""

    def __init__(self, keys: Iterable[str]) -> None:
        # Digests have one length, so that a comparison tells nothing about the key's.
        self._digests = [_digest(key) for key in keys]

    @property
    def required(self) -> bool:
        """Whether a request needs a key at all."""
        return bool(self._digests)

    def allow(self, authorization: str) -> bool:
        """Whether the value of an ``Authorization`` header opens the edge."""
        if not self._digests:
            return True
        scheme, _, key = authorization.partition(" ")
        digest = _digest(key.strip())
        # Every key is compared, so that the time tells nothing about which one was near.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return scheme.lower() == "bearer" and any(matches)


def load_api_keys(keys: Iterable[str], key_file: Path | None) -> ApiKeys:
    """Keys given directly and those of a file, one a line. Raises ``ConfigError`` for an unreadable or empty file."""
    known = [key for key in keys if key]
    if key_file is not None:
        try:
            lines = key_file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"api_key_file: cannot read {key_file}: {error}") from None
        from_file = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not from_file:
            raise ConfigError(f"api_key_file: {key_file} holds no key; write one a line, or remove the setting")
        known += from_file
    return ApiKeys(known)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
