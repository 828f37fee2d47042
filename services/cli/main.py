"""The ``forerun`` command: a table of subcommands, each imported only when it is called."""

from typing import ClassVar

import typer

from services.cli.lazy_group import LazyCommand, LazyGroup

HELP = """Serve large language models across GPUs by running ahead of them.

\b
Start here:
  forerun models get smollm2-135m      fetch a small model
  forerun doctor                       check this machine and the configuration
  forerun up                           start everything that deploy/local.yaml names
  forerun generate "Why is the sky blue?"
  forerun trace ID                     see where a request's time went

Each command explains itself: forerun COMMAND --help.
"""


class ForerunGroup(LazyGroup):
    """The subcommands of ``forerun``."""

    table: ClassVar = (
        LazyCommand("up", "services.cli.up", "Start a whole system here: Redis, stages, schedulers, router."),
        LazyCommand("doctor", "services.cli.doctor.command", "Check what a start depends on, and say the fix."),
        LazyCommand("generate", "services.cli.generate", "Send a prompt and stream the answer."),
        LazyCommand("status", "services.cli.status", "Show what runs and whether it is well."),
        LazyCommand("health", "services.cli.health", "Ask one server for its health; exits with 0 when it serves."),
        LazyCommand("trace", "services.cli.trace", "Draw one request's trace as a tree."),
        LazyCommand("ledger", "services.cli.ledger", "Show the KV ledger, or check it against the engines."),
        LazyCommand("profile", "services.cli.profile", "Measure each split of a model on the devices here."),
        LazyCommand("plan", "services.cli.plan", "Predict which split of the devices is the fastest, and why."),
        LazyCommand("certs", "services.cli.certs", "Make and renew certificates for all processes."),
        LazyCommand("models", "services.cli.models", "Fetch and list models."),
        LazyCommand("train", "services.cli.train", "Train what Forerun learns: drafters, choices, lengths."),
        LazyCommand("bench", "services.cli.bench", "Record every expert and depth, and draw what came of it."),
        LazyCommand("version", "services.cli.version", "Print versions."),
    )


typer_app = typer.Typer(
    name="forerun",
    cls=ForerunGroup,
    help=HELP,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@typer_app.callback()
def forerun() -> None:
    """Makes typer treat the application as a group; it has no options of its own."""


def app() -> None:
    """Entry point of the ``forerun`` console script."""
    typer_app()
