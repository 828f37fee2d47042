"""A command group that imports a command when it is called, so that ``forerun --help`` answers at once.

A table names each command, its module and one line of help; the module is imported when the command is resolved.
Contexts and commands are typed ``Any``, since typer hides the classes behind them in a private module.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """One row of the table."""

    name: str
    module: str
    """Holds a ``typer.Typer`` called ``command``."""
    help: str


class LazyGroup(TyperGroup):
    """Lists commands from a table and imports only the one that is called."""

    table: ClassVar[Sequence[LazyCommand]] = ()

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  (click's signature)
        """Names in the table's order."""
        return [row.name for row in self.table]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  (click's signature)
        """A stand-in that carries the help line; enough for listing and for spelling suggestions."""
        for row in self.table:
            if row.name == cmd_name:
                return TyperCommand(row.name, help=row.help)
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The real command, imported now."""
        name, stand_in, rest = super().resolve_command(ctx, args)
        if name is None or stand_in is None:
            return name, stand_in, rest
        row = next(row for row in self.table if row.name == name)
        application: typer.Typer = import_module(row.module).command
        return name, get_command(application), rest
