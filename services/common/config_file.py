"""Loads a YAML or JSON file into a configuration model, with errors that name file, line, field and fix.

Precedence, strongest first: ``--set a.b=value``, the file, the model's default. The one environment variable is
``FORERUN_CONFIG``: the file when ``--config`` is absent.
"""

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from services.common.config_fields import field_help, known_names
from services.common.config_yaml import YamlDocument, apply_override, read_yaml
from services.common.errors import ConfigError
from services.common.version import FORERUN_VERSION

M = TypeVar("M", bound=BaseModel)

CONFIG_ENV = "FORERUN_CONFIG"


def load_config(path: Path, model: type[M], overrides: Sequence[str] = ()) -> M:
    """Reads ``path`` and applies ``overrides`` (``"a.b=value"``, the value in YAML).

    Raises ``ConfigError`` with one ``file:line: field.path: problem; fix`` a line, all problems at once.
    """
    document = read_yaml(path)
    for override in overrides:
        apply_override(document, override)
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        problems = [_describe(document, model, detail) for detail in error.errors(include_url=False)]
        raise ConfigError("\n".join(problems)) from None


def parse_service_args(prog: str, model: type[M], argv: Sequence[str] | None = None) -> M:
    """The configuration that a service's command line names. Prints the error and exits with 2 when it is wrong."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=(model.__doc__ or "").strip(),
        epilog=field_help(model),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help=f"YAML or JSON; default: ${CONFIG_ENV}")
    parser.add_argument(
        "--set",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="override one field, as in --set server.listen=127.0.0.1:0; repeatable; stronger than the file",
    )
    parser.add_argument("--version", action="version", version=f"forerun {FORERUN_VERSION}")
    arguments = parser.parse_args(argv)
    path = arguments.config or (Path(os.environ[CONFIG_ENV]) if os.environ.get(CONFIG_ENV) else None)
    if path is None:
        parser.error(f"--config FILE is required (or {CONFIG_ENV} in the environment)")
    try:
        return load_config(path, model, arguments.overrides)
    except ConfigError as error:
        print(f"{prog}: {error}", file=sys.stderr)  # noqa: T201  (a command line's answer, before logs exist)
        sys.exit(2)


def _describe(document: YamlDocument, model: type[BaseModel], detail: ErrorDetails) -> str:
    location = document.locate(detail["loc"], is_missing=detail["type"] == "missing")
    field = ".".join(str(part) for part in location) or "(file)"
    return f"{document.where(location)}: {field}: {_problem(model, detail, location)}"


def _problem(model: type[BaseModel], detail: ErrorDetails, location: tuple[int | str, ...]) -> str:
    if detail["type"] == "extra_forbidden":
        names = known_names(model, location[:-1])
        close = difflib.get_close_matches(str(location[-1]), names, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(sorted(names)) or 'none'}"
        return f"unknown field; {hint}"
    if detail["type"] == "missing":
        return "missing; add it"
    message = detail["msg"].removeprefix("Value error, ")
    shown = _shown(detail["input"])
    return f"{message}; got {shown}" if shown else message


def _shown(value: object) -> str:
    """A scalar as it stands in the file; nothing for mappings and lists, which would drown the message."""
    return "" if isinstance(value, dict | list) else repr(value)[:80]
