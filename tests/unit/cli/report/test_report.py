"""A grid's page: the numbers behind its plots, and the plots."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from services.cli.bench import command
from services.cli.report.curves import courses, survivals
from services.cli.report.page import report_page
from services.cli.report.speeds import ORACLE, speeds
from services.common.errors import ConfigError
from services.router.apex.training.request_table import RequestRow, write_requests
from services.scheduler.apex.block_table import BlockRow, BlockTable, write_blocks
from services.scheduler.apex.features import FEATURES


def row(prompt: str, workload: str, expert: str, depth: int, seconds: float, wasted: int = 0) -> RequestRow:
    drafted = 40 if depth else 0
    asked = (f"{prompt}-{expert}-{depth}", prompt, workload, "train", expert, depth, 1, 41)
    return RequestRow(*asked, 41, seconds + 0.5, 0.5, drafted, drafted - wasted, drafted // max(depth, 1), 0)


ROWS = [
    row("a", "code", "plain", 0, 4.0),
    row("a", "code", "ngram", 4, 1.0, wasted=10),
    row("a", "code", "ngram", 8, 2.0, wasted=30),
    row("b", "code", "plain", 0, 4.0),
    row("b", "code", "ngram", 4, 5.0, wasted=40),
    row("c", "<maths>", "plain", 0, 2.0),
    row("d", "edits", "ngram", 4, 1.0),
]


def block(expert: str, index: int, drafted: int, accepted: int, request: str = "r") -> BlockRow:
    features = np.zeros(len(FEATURES), np.float32)
    return BlockRow(
        request, request, "", "train", expert, drafted, drafted, accepted, accepted + 1, index, 1, 5, 0.0, 0.1, features
    )


BLOCKS = [
    block("plain", 0, 0, 0),
    block("ngram", 1, 4, 4),
    block("ngram", 2, 2, 2),
    block("ngram", 1, 4, 0, "s"),
    block("ngram", 2, 4, 1, "s"),
]


def test_speeds_are_over_plain_decoding_of_the_same_prompts() -> None:
    found = speeds(ROWS)
    assert list(found) == ["<maths>", "code"]
    code = found["code"]
    assert list(code) == ["plain", "ngram-4", "ngram-8", ORACLE]
    assert (code["ngram-4"].requests, code["ngram-8"].requests) == (2, 1)
    assert code["ngram-4"].speedup == pytest.approx(8 / 6)
    assert code["ngram-8"].speedup == pytest.approx(4 / 2)
    assert code["ngram-4"].waste == pytest.approx(50 / 80)
    assert code["plain"].tokens_per_s == pytest.approx(80 / 8)
    assert code[ORACLE].speedup == pytest.approx(8 / 5)
    assert code[ORACLE].waste == pytest.approx(10 / 40)


def test_survival_counts_censored_blocks_as_such() -> None:
    (found,) = survivals(BlockTable.of(BLOCKS), None)
    assert found.expert == "ngram"
    # Four blocks reach the first position, three the second, of which one is rejected; one is cut off behind it.
    assert found.reached.tolist() == [4, 3, 1, 1]
    assert found.observed.tolist() == pytest.approx([3 / 4, 3 / 4 * 2 / 3, 1 / 2, 1 / 2])
    assert found.expected is None


def test_a_course_is_in_the_mean_over_requests() -> None:
    (found,) = courses(BlockTable.of(BLOCKS))
    assert found.requests.tolist() == [0, 2, 2]
    assert found.drafted.tolist() == [0, 4, 3]
    assert found.accepted.tolist() == [0, 2, 1.5]


def test_the_page_has_every_setting_and_escapes_names() -> None:
    page = report_page("<grid>", ROWS, BlockTable.of(BLOCKS), None)
    assert page.count("<svg") == 3
    assert "&lt;grid&gt;" in page
    assert "<maths>" not in page.replace("&lt;", "")
    assert '<tr class="best"><td>ngram-8</td>' in page
    assert page == report_page("<grid>", ROWS, BlockTable.of(BLOCKS), None)


def test_what_cannot_be_compared_is_said() -> None:
    with pytest.raises(ConfigError, match="no plain requests"):
        report_page("", ROWS[-1:], BlockTable.of(BLOCKS), None)
    with pytest.raises(ConfigError, match="no drafts"):
        report_page("", ROWS, BlockTable.of(BLOCKS[:1]), None)


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "blocks").mkdir()
    out = tmp_path / "page.html"
    missing = CliRunner().invoke(command, ["report", str(tmp_path), "--out", str(out)])
    assert missing.exit_code != 0
    write_requests(tmp_path / "requests.parquet", ROWS)
    write_blocks(tmp_path / "blocks" / "blocks-0.parquet", BLOCKS)
    made = CliRunner().invoke(command, ["report", str(tmp_path), "--out", str(out)])
    assert made.exit_code == 0, made.output
    assert "<h3>code</h3>" in out.read_text()
