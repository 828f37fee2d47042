"""YAML with the line of every field kept, and overrides of single fields on top."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from services.common.errors import ConfigError

Location = tuple[int | str, ...]

MAX_CONFIG_BYTES = 4 * 2**20
MAX_NESTING = 32
MAX_FIELDS = 100_000


@dataclass(slots=True)
class YamlDocument:
    """A parsed file: plain dicts, lists and scalars in ``data``, and where each stood."""

    path: Path
    data: dict[str, Any]
    lines: dict[Location, int]
    overridden: dict[Location, str] = field(default_factory=dict)
    """The text of the ``--set`` that each overridden location came from."""

    def locate(self, path: Location, *, is_missing: bool) -> Location:
        """A validator's path without the parts that are no place in the file, such as the names of union members.

        ``is_missing`` keeps the last part, which then names a field that the file lacks.
        """
        node: Any = self.data
        found: list[int | str] = []
        for part in path:
            if isinstance(node, dict) and part in node:
                node = node[str(part)]
            elif isinstance(node, list) and isinstance(part, int) and part < len(node):
                node = node[part]
            else:
                continue
            found.append(part)
        return (*found, path[-1]) if is_missing else tuple(found)

    def where(self, location: Location) -> str:
        """``file:line`` of a field, or of the nearest parent that is in the file; ``--set ...`` when overridden."""
        for length in range(len(location), -1, -1):
            prefix = location[:length]
            if prefix in self.overridden:
                return f"--set {self.overridden[prefix]}"
            if prefix in self.lines:
                return f"{self.path}:{self.lines[prefix]}"
        return f"{self.path}:1"


def read_yaml(path: Path) -> YamlDocument:
    """Reads YAML (or JSON, which YAML includes). Raises ``ConfigError`` naming file and line."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; check --config") from None
    if len(content) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_CONFIG_BYTES} bytes; this is no configuration file")
    parsed = _parse(content, str(path))
    if parsed is None:
        parsed = CommentedMap()
    if not isinstance(parsed, CommentedMap):
        raise ConfigError(f"{path}:1: expected a mapping of fields, as in 'listen: 127.0.0.1:50051'")
    lines: dict[Location, int] = {(): 1}
    data = _plain(parsed, (), lines)
    return YamlDocument(path, data, lines)


def apply_override(document: YamlDocument, override: str) -> None:
    """Sets one field, ``"a.b=value"`` with the value in YAML; a number in the path indexes a list."""
    name, equals, text = override.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--set {override}: expected FIELD=VALUE, as in server.listen=127.0.0.1:0")
    location = tuple(int(part) if part.isdecimal() else part for part in name.strip().split("."))
    value = _plain(_parse(text.encode(), f"--set {override}"), (), {})
    target: Any = document.data
    for depth, part in enumerate(location[:-1]):
        target = _step(target, part, f"--set {override}: {'.'.join(map(str, location[: depth + 1]))}")
    _assign(target, location[-1], value, f"--set {override}: {name}")
    document.overridden[location] = override


def _step(target: Any, part: int | str, where: str) -> Any:
    if isinstance(target, dict):
        if target.get(str(part)) is None:
            target[str(part)] = {}
        return target[str(part)]
    if isinstance(target, list) and isinstance(part, int) and part < len(target):
        return target[part]
    raise ConfigError(f"{where}: nothing there to set a field of")


def _assign(target: Any, part: int | str, value: Any, where: str) -> None:
    if isinstance(target, dict):
        target[str(part)] = value
    elif isinstance(target, list) and isinstance(part, int) and part < len(target):
        target[part] = value
    else:
        raise ConfigError(f"{where}: nothing there to set")


def _parse(content: bytes, source: str) -> Any:
    loader = YAML(typ="rt", pure=True)
    loader.version = (1, 2)
    try:
        return loader.load(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(f"{source}:{line}: not UTF-8 text") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{source}:{line}: not valid YAML: {error.problem or error.context}") from None
    except (YAMLError, ValueError) as error:
        raise ConfigError(f"{source}:1: not valid YAML: {error}") from None


def _plain(node: Any, location: Location, lines: dict[Location, int]) -> Any:
    """Plain Python values of a parsed tree; fills ``lines`` with each location's line, from 1."""
    if len(location) > MAX_NESTING or len(lines) > MAX_FIELDS:
        raise ConfigError(
            f"{'.'.join(map(str, location[:4]))}: nested deeper than {MAX_NESTING} levels or more than "
            f"{MAX_FIELDS} fields; does an alias contain itself?"
        )
    if isinstance(node, CommentedMap):
        plain = {}
        for key, value in node.items():
            child = (*location, str(key))
            # A merged key (<<) has no line of its own; its parent's is shown.
            lines[child] = _line_of(node.lc.data, key) or lines.get(location, 1)
            plain[str(key)] = _plain(value, child, lines)
        return plain
    if isinstance(node, CommentedSeq):
        for index in range(len(node)):
            lines[(*location, index)] = _line_of(node.lc.data, index) or lines.get(location, 1)
        return [_plain(value, (*location, index), lines) for index, value in enumerate(node)]
    return _scalar(node)


def _line_of(positions: dict[Any, list[int]] | None, key: Any) -> int | None:
    """From the loader's table of line and column, both from 0."""
    position = (positions or {}).get(key)
    return position[0] + 1 if position else None


def _scalar(node: Any) -> Any:
    """Without the loader's own subclasses of the built-in types, which only keep how a value was written."""
    if isinstance(node, bool) or node is None:
        return node
    for kind in (int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node
