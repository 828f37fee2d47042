"""``forerun generate --explain``: who drafted for a request, and what the router compared."""

from rich.console import Console
from rich.table import Table

from services.common.types import ExpertChoice

SHOWN = 12
"""Scores; --json has all."""

_BECAUSE = {
    "learned": "the route model expects most of it",
    "pinned": "the request asked for it",
    "not-possible": "min_p and logit_bias allow no drafts",
    "fallback": "the route model gave no usable score",
}


def explain_choice(choice: ExpertChoice | None, console: Console | None = None) -> None:
    """For people, on standard error."""
    console = console or Console(stderr=True, highlight=False)
    if choice is None:
        console.print("drafts: as the replica chose (no route model, or no replica that speculates in blocks)")
        return
    who = choice.expert or "as the replica chose"
    depth = "" if not choice.first_draft_tokens else f", {choice.first_draft_tokens} in the first block"
    because = _BECAUSE.get(choice.reason, choice.reason)
    console.print(f"drafts: {who}{depth}; {because} (profile {choice.profile})")
    if not choice.scores:
        return
    table = Table("EXPERT", "DEPTH", "UTILITY", "SPEEDUP", "WASTED PER TOKEN", box=None)
    for each in choice.scores[:SHOWN]:
        table.add_row(
            each.expert, str(each.draft_tokens), f"{each.utility:.3f}", f"{each.speedup:.2f}", f"{each.wasted:.2f}"
        )
    console.print(table)
    if (left := len(choice.scores) - SHOWN) > 0:
        console.print(f"and {left} more")
