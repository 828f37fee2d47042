"""The prompt of ``forerun up --prompt``: proof that everything works, through the public API."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from services.cli.answer_output import TextWriter
from services.cli.answer_stream import Question, stream_answer
from services.cli.connection import Connection
from services.cli.errors import EXIT_CODES
from services.cli.local_config import LocalConfig, RouterSection
from services.cli.paths import DEFAULT_RUN_DIR
from services.cli.units import LaunchPlan
from services.client import Chat, ChatMessage
from services.common.errors import RequestEndedError
from services.common.types import SamplingOptions

MAX_TOKENS = 120
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One question to a system that has just become ready, if there is one to ask."""

    prompt: str | None
    leave: bool
    """Stop the system after the answer."""
    run_dir: Path
    """For the command that shows the trace."""

    async def run(self, plan: LaunchPlan, config: LocalConfig, console: Console) -> int | None:
        """The exit code when the system is to stop, else ``None``."""
        code = 0
        if self.prompt is not None:
            code = await self._ask(self.prompt, plan, config, console)
        if self.leave or code != 0:
            return code
        console.print("\nServing. Ctrl-C drains and stops.", highlight=False)
        return None

    async def _ask(self, prompt: str, plan: LaunchPlan, config: LocalConfig, console: Console) -> int:
        connection = Connection(plan.router_grpc, plan.tls, _first_key(config.router))
        sampling = SamplingOptions(temperature=0.0, max_tokens=MAX_TOKENS)
        question = Question(Chat([ChatMessage("user", prompt)]), sampling, timeout_s=TIMEOUT_S)
        console.print(f"\n[bold]> {escape(prompt)}[/bold]\n", highlight=False, soft_wrap=True)
        try:
            summary = await stream_answer(connection, question, TextWriter(1))
        except RequestEndedError as error:
            console.print(f"error: {error.outcome}: {escape(error.message)}", highlight=False, soft_wrap=True)
            return EXIT_CODES[error.outcome]
        console.print(f"\n[dim]{summary}. Where the time went:[/dim]", highlight=False)
        place = "" if self.run_dir == DEFAULT_RUN_DIR else f" --run-dir {self.run_dir}"
        console.print(f"forerun trace {summary.trace_id}{escape(place)}", highlight=False, soft_wrap=True)
        return 0


def _first_key(router: RouterSection) -> str | None:
    """Any key opens the edge."""
    if router.api_keys:
        return router.api_keys[0].get_secret_value()
    if router.api_key_file is None:
        return None
    lines = (line.strip() for line in router.api_key_file.read_text(encoding="utf-8").splitlines())
    return next((line for line in lines if line and not line.startswith("#")), None)
