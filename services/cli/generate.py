"""``forerun generate``: a prompt's answer on the terminal."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from services.cli.answer_output import JsonWriter, TextWriter
from services.cli.answer_stream import Question, stream_answer
from services.cli.connection import (
    ApiKeyOption,
    CaFileOption,
    CertFileOption,
    KeyFileOption,
    RouterOption,
    RunDirOption,
    connect_to,
)
from services.cli.errors import CliError, reports_errors
from services.cli.expert_explanation import explain_choice
from services.cli.paths import DEFAULT_RUN_DIR
from services.cli.run_dir import RunDir
from services.client import Chat, ChatMessage
from services.common.expert_profiles import ProfileName
from services.common.types import SamplingOptions, StructuredOutput

command = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


@command.command()
@reports_errors
def generate(  # noqa: PLR0913  (one parameter an option)
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    chat: Annotated[bool, typer.Option("--chat", help="As a user's turn of a chat (the default).")] = False,
    text: Annotated[bool, typer.Option("--text", help="As the beginning of a text to go on with.")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="As token ids, separated by commas or spaces.")] = False,
    system: Annotated[str | None, typer.Option(help="The system turn before the prompt, with --chat.")] = None,
    model: Annotated[str, typer.Option(help="A served model name; default: the only one.")] = "",
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer; default: up to the context length.")] = None,
    min_tokens: Annotated[int, typer.Option(help="Shortest answer.")] = 0,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Sample from the likeliest tokens of this total probability.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from this many likeliest tokens; 0: all.")] = 0,
    min_p: Annotated[float, typer.Option(help="Drop tokens less likely than this share of the likeliest.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Same seed, same answer.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the answer; repeatable.")] = None,
    n: Annotated[int, typer.Option("--n", "-n", help="Answers to the same prompt.")] = 1,
    presence_penalty: Annotated[float, typer.Option(help="Against tokens that occurred in the answer.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="Against tokens, by how often they occurred.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Over 1: against what occurred, prompt included.")] = 1.0,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on behind the end of the answer.")] = False,
    json_schema: Annotated[
        Path | None, typer.Option(help="File with a JSON schema that the answer must satisfy.")
    ] = None,
    logprobs: Annotated[int | None, typer.Option(help="Log probabilities of so many candidates; shown by --json.")] = (
        None
    ),
    expert: Annotated[
        str | None, typer.Option(help="Who drafts: plain, ngram, eagle3 or draft_model; default: the replica's choice.")
    ] = None,
    draft_tokens: Annotated[
        int | None, typer.Option(min=0, help="Draft tokens of a block; default: the replica's choice.")
    ] = None,
    profile: Annotated[
        ProfileName | None,
        typer.Option(help="How much wasted draft tokens count; default: as the router and the replica are configured."),
    ] = None,
    deadline: Annotated[float | None, typer.Option(metavar="SECONDS", help="Give up after.")] = None,
    priority: Annotated[int, typer.Option(help="Lower is served first, where the replica's policy says so.")] = 0,
    tenant: Annotated[str, typer.Option(help="On whose behalf, where replicas share their time fairly.")] = "",
    request_id: Annotated[str, typer.Option(help="Names the request in logs and traces; default: made up.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line for each event.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="At the end, say who drafted, why, and what the router compared.")
    ] = False,
    trace: Annotated[bool, typer.Option("--trace", help="At the end, say how to see the request's trace.")] = False,
    router: RouterOption = None,
    api_key: ApiKeyOption = None,
    ca_file: CaFileOption = None,
    cert_file: CertFileOption = None,
    key_file: KeyFileOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
) -> None:
    """Send a prompt and stream the answer. Ctrl-C cancels the request.

    \b
    Examples:
      forerun generate "Why is the sky blue?" --temperature 0 --trace
      forerun generate --text "Once upon a time" --max-tokens 100 --seed 7
      forerun generate "Sum up: ..." --profile efficient --explain
      forerun generate "Name three colours" --json | jq -r 'select(.event=="delta").text'
      git diff | forerun generate - --system "Write a commit message for this diff."
      forerun generate "Hello" --router 10.0.0.5:50051 --ca-file ca.pem --deadline 10

    \b
    Exit codes: 0 answered, 2 the request is wrong, 3 overloaded, 4 nothing serves, 5 deadline passed,
    6 the replica was lost midway, 7 internal error, 130 cancelled.
    """
    sampling = SamplingOptions(
        n=n,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        logprobs=logprobs,
        structured_output=_schema(json_schema),
        expert=expert,
        draft_tokens=draft_tokens,
        profile=profile,
    )
    kind = _kind(chat=chat, text=text, tokens=tokens, system=system)
    question = Question(
        _prompt(sys.stdin.read() if prompt == "-" else prompt, kind, system),
        sampling,
        model=model,
        request_id=request_id,
        priority=priority,
        tenant=tenant,
        timeout_s=deadline,
    )
    connection = connect_to(router, RunDir(run_dir), api_key, ca_file, cert_file, key_file)
    writer = JsonWriter() if as_json else TextWriter(max(1, n))
    summary = asyncio.run(stream_answer(connection, question, writer))
    if sys.stderr.isatty() and not as_json:
        typer.secho(str(summary), err=True, dim=True)
    if explain:
        explain_choice(summary.expert_choice)
    if trace:
        typer.echo(f"forerun trace {summary.trace_id}", err=True)


def _kind(*, chat: bool, text: bool, tokens: bool, system: str | None) -> str:
    chosen = [name for name, given in (("chat", chat), ("text", text), ("tokens", tokens)) if given]
    if len(chosen) > 1:
        raise CliError(f"--{chosen[0]} and --{chosen[1]} exclude each other; give one")
    kind = chosen[0] if chosen else "chat"
    if system is not None and kind != "chat":
        raise CliError(f"--system belongs to a chat; drop it, or --{kind}")
    return kind


def _prompt(prompt: str, kind: str, system: str | None) -> str | tuple[int, ...] | Chat:
    if kind == "text":
        return prompt
    if kind == "chat":
        turns = [ChatMessage("system", system)] if system is not None else []
        return Chat([*turns, ChatMessage("user", prompt)])
    try:
        return tuple(int(part) for part in prompt.replace(",", " ").split())
    except ValueError as error:
        raise CliError(f"--tokens: {error}; write token ids as in 1,2,3") from None


def _schema(file: Path | None) -> StructuredOutput | None:
    if file is None:
        return None
    try:
        return StructuredOutput("json_schema", file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"--json-schema: cannot read {file}: {error}") from error
