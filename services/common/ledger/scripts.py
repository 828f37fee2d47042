"""The Lua scripts that do every change of the ledger, each atomic. Their text is in ``lua/``."""

from importlib.resources import files

_FOLDER = files("services.common.ledger") / "lua"


def load(name: str) -> str:
    """The text of a script about one replica: ``write``, ``retire``, ``reserve`` or ``release``."""
    return _text("prelude") + _text(name)


def load_read() -> str:
    """The text of the script that reads the whole fleet."""
    return _text("read")


def _text(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")
