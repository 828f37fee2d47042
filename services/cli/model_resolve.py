"""From what a user calls a model to what an engine can load."""

import re
from pathlib import Path

from services.cli.errors import CliError
from services.cli.model_catalog import CATALOG
from services.cli.model_store import Listener, ModelStore

_HUGGING_FACE_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def resolve_model(name_or_path: str, store: ModelStore, listen: Listener) -> str:
    """A folder, or a Hugging Face id that the engine loads itself.

    In this order: an existing folder; a name of the catalog, fetched when it is not in the cache; a Hugging Face id.

    Raises:
        CliError: it is none of these, or fetching it failed.
    """
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise CliError(f"{path} holds no config.json; it is not a Hugging Face checkpoint")
        return str(path.resolve())
    if name_or_path in CATALOG:
        # Sizes suffice here: checksums were verified when the model was stored, and a start should be quick.
        if store.present(name_or_path):
            return str(store.path(name_or_path))
        return str(store.get(name_or_path, listen))
    if is_hugging_face_id(name_or_path):
        return name_or_path
    raise CliError(
        f"{name_or_path!r} is no folder, no known model ({', '.join(CATALOG)}) and no Hugging Face id (owner/name)"
    )


def is_hugging_face_id(text: str) -> bool:
    """Whether it looks like ``owner/name``."""
    return _HUGGING_FACE_ID.fullmatch(text) is not None
