"""What ``forerun up`` shows: a live table while processes start, lines for everything that happens later."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from services.cli.managed_process import ManagedProcess
from services.cli.units import LaunchPlan, Unit, UnitKind

REFRESHES_PER_S = 4


class LineDisplay:
    """One line an event; for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def starting(self, unit: Unit) -> None:
        """Says so."""
        self._line(f"starting   {unit.name}")

    def ready(self, unit: Unit, seconds: float) -> None:
        """Says so, with the time it took."""
        self._line(f"ready      {unit.name} ({seconds:.1f} s)")

    def stopped(self, unit: Unit) -> None:
        """Says so."""
        self._line(f"stopped    {unit.name}")

    def died(self, process: ManagedProcess) -> None:
        """Says how, and shows the end of the log."""
        self._line(f"died       {process.unit.name} {process.how_it_ended()}; the log {process.log_file} ends:")
        for line in process.log_tail() or ["(it wrote nothing)"]:
            self._line(f"  {line}")

    def message(self, text: str) -> None:
        """The text as it is."""
        self._line(text)

    def close(self) -> None:
        """Nothing is left to be drawn."""

    def _line(self, text: str) -> None:
        self._console.print(escape(text), highlight=False, soft_wrap=True)


@dataclass(slots=True)
class _Row:
    since: float
    seconds: float | None = None

    @property
    def shown(self) -> tuple[Text, str]:
        if self.seconds is None:
            return Text("starting", style="yellow"), f"{time.monotonic() - self.since:.0f} s"
        return Text("ready", style="green"), f"{self.seconds:.1f} s"


class LiveDisplay(LineDisplay):
    """On a terminal: a table of all processes until ``close``, then lines."""

    def __init__(self, console: Console, units: Sequence[Unit]) -> None:
        super().__init__(console)
        self._units = units
        self._rows: dict[str, _Row] = {}
        self._live: Live | None = Live(
            get_renderable=self._table, console=console, refresh_per_second=REFRESHES_PER_S, transient=False
        )
        self._live.start()

    def starting(self, unit: Unit) -> None:
        """A row counts its seconds."""
        if self._live is None:
            super().starting(unit)
        self._rows[unit.name] = _Row(time.monotonic())

    def ready(self, unit: Unit, seconds: float) -> None:
        """The row stands still."""
        if self._live is None:
            super().ready(unit, seconds)
        self._rows[unit.name].seconds = seconds

    def close(self) -> None:
        """Leaves the table as it is now."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _table(self) -> Table:
        table = Table(box=None, show_header=False, padding=(0, 1))
        for unit in self._units:
            row = self._rows.get(unit.name)
            state, seconds = row.shown if row else (Text("waiting", style="dim"), "")
            table.add_row(unit.name, state, seconds, unit.address)
        return table


def address_table(plan: LaunchPlan, logs: Path) -> Table:
    """Where everything is, once it runs."""
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    if plan.router_http is not None:
        table.add_row("API, OpenAI", f"{plan.http_scheme}://{plan.router_http}/v1")
    table.add_row("API, gRPC", f"{plan.router_grpc}  forerun.inference.v1.InferenceService")
    table.add_row("model", ", ".join(plan.model_names))
    traces = f"{plan.traces_dir}  forerun trace ID" if plan.traces_dir else f"{plan.otlp_endpoint}"
    table.add_row("traces", traces)
    for unit in reversed(plan.units):
        for name, address in unit.metrics:
            table.add_row(f"metrics, {name}", f"http://{address}/metrics")
    redis = next((unit for unit in plan.units if unit.kind is UnitKind.REDIS), None)
    if plan.ledger.enabled:
        own = "" if redis is None else "  (started here)"
        table.add_row("ledger", f"{plan.ledger.place}{own}  forerun ledger show")
    table.add_row("logs", str(logs))
    return table
