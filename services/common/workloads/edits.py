"""Edits of real software: functions that differ between two releases of a package, to be changed as their authors did.

The answer is nearly the function that stands in the prompt, which is what makes such work different from other code.
"""

import ast
import difflib
import textwrap
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from services.common.training.prompt import Message
from services.common.workloads.prompt import WorkloadPrompt
from services.common.workloads.wheels import EDITED, Releases

SHORTEST_LINES, LONGEST_LINES = 8, 60
_TOKENS: Final = 320
_ASK: Final = (
    "Apply the change to this function of {package} and write the whole new function.\n\n"
    "```python\n{old}\n```\n\nThe change:\n\n```diff\n{diff}\n```"
)


def edits(wheels: Mapping[str, Path], pairs: Iterable[Releases] = EDITED) -> Iterator[WorkloadPrompt]:
    """One prompt for each changed function. ``wheels``: by name, as ``fetch_wheels`` returns them."""
    for pair in pairs:
        old, new = (functions_of(wheels[each.name]) for each in (pair.old, pair.new))
        for name in sorted(old.keys() & new.keys()):
            before, after = old[name], new[name]
            if before != after and SHORTEST_LINES <= before.count("\n") + 1 <= LONGEST_LINES:
                text = _ASK.format(package=pair.package, old=before, diff=_diff(before, after))
                yield WorkloadPrompt.make("edits", pair.split, pair.package, [Message("user", text)], _TOKENS)


def functions_of(wheel: Path) -> dict[str, str]:
    """The source of every function and method, by file and qualified name; the last of several of one name."""
    found: dict[str, str] = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py"):
                source = archive.read(name).decode()
                for qualified, text in _functions(ast.parse(source).body, source.splitlines(), ""):
                    # Packages move below src or change their name's case; the file's own name stays.
                    found[f"{name.rpartition('/')[2]}:{qualified}"] = text
    return found


def _functions(body: Iterable[ast.stmt], lines: list[str], within: str) -> Iterator[tuple[str, str]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node.body, lines, f"{within}{node.name}.")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min((each.lineno for each in node.decorator_list), default=node.lineno)
            text = "\n".join(lines[first - 1 : node.end_lineno])
            yield f"{within}{node.name}", textwrap.dedent(text)


def _diff(before: str, after: str) -> str:
    changed = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    return "\n".join(list(changed)[2:])
