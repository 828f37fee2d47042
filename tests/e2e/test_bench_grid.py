"""``forerun bench grid`` on a real replica: what it records is what a depth model learns from."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import typer_app
from services.common.training.prompt import Message
from services.common.workloads.prompt import WorkloadPrompt, write_prompts
from services.common.workloads.store import VERSION
from services.router.apex.training.request_table import read_requests
from services.scheduler.apex.block_table import read_blocks
from services.scheduler.apex.features import FEATURES
from services.scheduler.apex.training.examples import usable
from tests.support.tiny_checkpoint import write_tiny_checkpoint

pytestmark = pytest.mark.timeout(300)

TOKENS = 24


def test_every_action_of_every_prompt_is_recorded_once(tmp_path: Path) -> None:
    model = write_tiny_checkpoint(tmp_path / "model", layers=2, hidden_size=128, spread=0.1)
    texts = ("Once upon a time. Once upon a time.", "A list of words, a list of words, a list")
    prompts = [WorkloadPrompt.make("code", "train", "a", [Message("user", text)], 64) for text in texts]
    folder = tmp_path / "cache" / "workloads" / f"v{VERSION}"
    folder.mkdir(parents=True)
    write_prompts(folder / "code.jsonl", prompts)
    out = tmp_path / "grid"

    def grid(*more: str) -> str:
        command = ["bench", "grid", "--model", str(model), "--drafter-kind", "draft_model", "--drafter", str(model)]
        command += ["--workloads", "code", "--prompts", "2", "--tokens", str(TOKENS), "--depths", "4", *more]
        command += ["--out", str(out), "--cache-dir", str(tmp_path / "cache")]
        command += ["--engine-arg", "max_model_len=512", "--engine-arg", "kv_cache_memory_bytes=67108864"]
        command += ["--engine-arg", "dtype=float32", "--engine-arg", "enforce_eager=true"]
        result = CliRunner().invoke(typer_app, command, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    assert "draft_model" in grid()
    rows = read_requests(out / "requests.parquet")
    assert {row.key for row in rows} == {
        (prompt.id, *action) for prompt in prompts for action in (("plain", 0), ("ngram", 4), ("draft_model", 4))
    }
    blocks = read_blocks(out / "blocks")
    assert len(usable(blocks)) == len(blocks)
    for row in rows:
        mine = blocks.of_rows(blocks.request_id == row.request_id)
        assert mine.emitted.sum() == row.answer_tokens - 1
        assert mine.index.tolist() == list(range(len(mine)))
        assert (mine.drafted.sum(), mine.accepted.sum()) == (row.drafted, row.accepted)
        assert (mine.features[:, FEATURES.index("answer_tokens")] > 0).all()
        assert 0 < row.first_token_s < row.seconds
    answers = {prompt.id: {row.answer_tokens for row in rows if row.prompt_id == prompt.id} for prompt in prompts}
    assert all(len(lengths) == 1 for lengths in answers.values()), "who drafts changes no answer"
    neural = [row for row in rows if row.expert == "draft_model"]
    assert sum(row.accepted for row in neural) > 0.8 * sum(row.drafted for row in neural) > 0

    grid()
    assert read_requests(out / "requests.parquet") == rows, "nothing is asked twice"
