"""The documentation names only what exists: files, links, commands and make targets."""

import re
from pathlib import Path

import pytest

from services.cli.main import ForerunGroup

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "deploy").glob("*.md"))]
FOLDERS = ("services", "benchmarks", "tests", "scripts")
PYTHON_NAMES = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def code_words(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", page.read_text())


@pages
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", page.read_text())]
    missing = [target for target in targets if target and "://" not in target and not (page.parent / target).exists()]
    assert missing == []


@pages
def test_files_that_are_named_exist(page: Path) -> None:
    missing = []
    for word in code_words(page):
        name = word.partition(":")[0]
        if re.fullmatch(r"(services|protos|deploy|tests|benchmarks|docs|scripts)(/[\w.-]+)+/?", name):
            found = (ROOT / name).exists()
        elif re.fullmatch(r"\w+\.py", name):
            found = name in PYTHON_NAMES
        else:
            continue
        if not found:
            missing.append(word)
    assert missing == []


@pages
def test_commands_and_targets_that_are_named_exist(page: Path) -> None:
    commands = {row.name for row in ForerunGroup.table}
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    words = "\n".join(code_words(page))
    assert set(re.findall(r"^forerun ([a-z]+)\b", words, re.MULTILINE)) <= commands
    assert set(re.findall(r"^make ([a-z]+)\b", words, re.MULTILINE)) <= targets
