"""Reads compose files as Docker Compose does, as far as ours go: ``extends``, variables, short and long forms."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

FOLDER = Path(__file__).parents[2] / "deploy" / "compose"
_VARIABLE = re.compile(r"\$\$|\$\{(\w+)(?:(:?[-?])([^}]*))?\}")
_ADDED_UP = {"volumes", "secrets", "ports", "tmpfs", "networks", "cap_drop", "security_opt"}
"""Lists that ``extends`` adds to; all others it replaces."""


@dataclass(frozen=True, slots=True)
class Project:
    """One file, its variables filled in and ``extends`` followed."""

    file: Path
    document: Mapping[str, Any]

    @property
    def services(self) -> Mapping[str, Mapping[str, Any]]:
        """By name."""
        services: Mapping[str, Mapping[str, Any]] = self.document["services"]
        return services

    def forerun_services(self) -> dict[str, Sequence[str]]:
        """The command of each that is one of ours."""
        return {
            name: service["command"]
            for name, service in self.services.items()
            if str(service.get("command", [""])[0]) == "python"
        }

    def mounted(self, name: str) -> dict[str, Path]:
        """What a service sees at which path, of files and folders of the repository or the machine."""
        pairs = [volume.split(":") for volume in self.services[name].get("volumes", ())]
        return {parts[1]: self.file.parent / parts[0] for parts in pairs if "/" in parts[0]}


def read_project(name: str, variables: Mapping[str, str]) -> Project:
    """``name`` of deploy/compose. Raises ``KeyError`` for a variable that must be set and is not."""
    file = FOLDER / name
    document = _filled(_read(file), variables)
    services = {key: _extended(file, service, variables) for key, service in document["services"].items()}
    return Project(file, {**document, "services": services})


def make_secrets(folder: Path) -> None:
    """Runs make-secrets.sh with the ``forerun`` of this environment."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run([FOLDER / "make-secrets.sh", folder], env={**os.environ, "PATH": path}, check=True)


def variables_of(text: str) -> set[str]:
    """Names that a compose file's text asks for."""
    return {match[1] for match in _VARIABLE.finditer(text) if match[1]}


def _read(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = YAML(typ="safe").load(file.read_text(encoding="utf-8"))
    return document


def _filled(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, variables) for each in value]
    if not isinstance(value, str):
        return value

    def fill(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        if match[1] in variables:
            return variables[match[1]]
        if match[2] in ("-", ":-"):
            return str(match[3])
        raise KeyError(f"{match[1]}: {match[3] or 'not set'}")

    return _VARIABLE.sub(fill, value)


def _extended(file: Path, service: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    if "extends" not in service:
        return dict(service)
    base_file = file.parent / service["extends"].get("file", file.name)
    base = _filled(_read(base_file), variables)["services"][service["extends"]["service"]]
    own = {key: value for key, value in service.items() if key != "extends"}
    return _merged(_extended(base_file, base, variables), own)


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in own.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merged(merged[key], value)
        elif key in _ADDED_UP and key in merged:
            merged[key] = [*merged[key], *(each for each in value if each not in merged[key])]
        else:
            merged[key] = value
    return merged
