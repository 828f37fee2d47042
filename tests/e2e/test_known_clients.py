"""Clients that users already have run unchanged: ``vllm bench serve`` against the HTTP edge.

The ``openai`` client, and one made from reflection alone under another grpcio, are tested in the integration tests.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from services.cli.background import BackgroundSystem

pytestmark = pytest.mark.timeout(300)

BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""The console script looks for a distribution called vllm, which the CPU build is not; its module is the same."""


def test_vllm_bench_serve(model_path: Path, tmp_path: Path) -> None:
    config = {
        "model": str(model_path),
        "served_model_names": ["smollm2-135m"],
        "router": {"server": {"listen": "127.0.0.1:0"}, "http_listen": "127.0.0.1:0"},
        "replicas": [{"engine": "fake"}],
    }
    with BackgroundSystem(config, tmp_path / "system") as system:
        command = [sys.executable, "-c", BENCH_SERVE, "--backend", "openai", "--model", "smollm2-135m"]
        command += ["--base-url", str(system.state.router_http), "--tokenizer", str(model_path)]
        command += ["--dataset-name", "random", "--random-input-len", "16", "--random-output-len", "8"]
        command += ["--num-prompts", "12", "--disable-tqdm", "--save-result"]
        command += ["--result-dir", str(tmp_path), "--result-filename", "result.json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["total_output_tokens"]) == (12, 96)
