"""The keys that open the edge, compared in constant time, and whose they are. One object for both edges."""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from services.common.errors import ConfigError
from services.common.validation import TENANT_PATTERN


class ApiKeys:
    """Without keys everything is open."""

    def __init__(self, keys: Iterable[str]) -> None:
        """``keys``: each a key, or a key, a space and its tenant."""
        pairs = (entry.split(maxsplit=1) for entry in keys)
        # Digests have one length, so that a comparison tells nothing about the key's.
        self._tenants = {_digest(key): "".join(tenant).strip() for key, *tenant in pairs}

    @property
    def required(self) -> bool:
        """Whether a request needs a key at all."""
        return bool(self._tenants)

    def allow(self, authorization: str) -> bool:
        """Whether the value of an ``Authorization`` header opens the edge."""
        return not self._tenants or self._find(authorization) is not None

    def tenant(self, authorization: str) -> str:
        """Whose key it is; empty where it is nobody's, and for a key that does not open the edge."""
        return self._find(authorization) or ""

    def _find(self, authorization: str) -> str | None:
        """The tenant of a known key."""
        scheme, _, key = authorization.partition(" ")
        digest = _digest(key.strip())
        # Every key is compared, so that the time tells nothing about which one was near.
        matches = [tenant for known, tenant in self._tenants.items() if hmac.compare_digest(digest, known)]
        return matches[0] if matches and scheme.lower() == "bearer" else None


def load_api_keys(keys: Iterable[str], key_file: Path | None) -> ApiKeys:
    """Keys given directly and those of a file, one a line. Raises ``ConfigError`` for an unreadable or empty file."""
    known = [key for key in keys if key.strip()]
    if key_file is not None:
        try:
            lines = key_file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"api_key_file: cannot read {key_file}: {error}") from None
        from_file = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not from_file:
            raise ConfigError(f"api_key_file: {key_file} holds no key; write one a line, or remove the setting")
        known += from_file
    for entry in known:
        _, *tenant = entry.split(maxsplit=1)
        if tenant and TENANT_PATTERN.fullmatch(tenant[0].strip()) is None:
            raise ConfigError("api_keys: a tenant's name behind a key must be of [A-Za-z0-9_.:-], 64 at most; mend it")
    return ApiKeys(known)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
