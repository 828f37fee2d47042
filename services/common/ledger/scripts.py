"""The Lua scripts that do every change of the ledger, each atomic. Their text is in ``lua/``."""

from importlib.resources import files

_FOLDER = files("services.common.ledger") / "lua"


def load(name: str) -> str:
    """The text of a script about one replica: ``write``, ``retire``, ``reserve``, ``release``, ``prefix_add`` or
    ``prefix_remove``."""
    return _text("prelude") + _text(name)


def load_read() -> str:
    """The text of the script that reads the whole fleet."""
    return _text("read")


def load_find() -> str:
    """The text of the script that finds the replicas with the longest prefixes of a prompt."""
    return _text("prefix_find")


def _text(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")
