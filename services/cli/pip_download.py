"""Downloads one wheel with pip, which knows the user's registry, proxy and certificates; reports its progress.

pip prints progress for people only, so the progress is the growth of the file in pip's own temporary folder.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from services.cli.errors import EXIT_FAILED, CliError

TIMEOUT_S = 1800
POLL_S = 0.1


def download_wheel(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Downloads the wheel of ``requirement``, without its dependencies, into ``folder``.

    Args:
        requirement: exact, as ``name==version``.
        folder: empty; also holds pip's partial file meanwhile.
        on_bytes: called with the bytes that have arrived so far.

    Raises:
        CliError: pip is missing, failed, or took longer than ``TIMEOUT_S``.
    """
    try:
        # Not find_spec, which tells setuptools that pip runs in this process: importing vLLM then fails.
        distribution("pip")
    except PackageNotFoundError:
        raise CliError(f"pip is missing in this environment; run: {sys.executable} -m ensurepip") from None
    scratch = folder / "pip"
    scratch.mkdir()
    log = folder / "pip.log"
    arguments = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*arguments, "--progress-bar=off", f"--dest={folder}", requirement],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(scratch)},
        )
    try:
        _watch(process, scratch, on_bytes)
    finally:
        process.kill()
        process.wait()
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise CliError(f"pip could not download {requirement}: {_last_error(log)}", EXIT_FAILED)
    return wheels[0]


def _watch(process: subprocess.Popen[bytes], scratch: Path, on_bytes: Callable[[int], None]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while process.poll() is None:
        if time.monotonic() > deadline:
            raise CliError(f"pip did not finish within {TIMEOUT_S} s; run the command again", EXIT_FAILED)
        on_bytes(max((_size(path) for path in scratch.rglob("*.whl")), default=0))
        time.sleep(POLL_S)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # pip moved it meanwhile
        return 0


def _last_error(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["no output"])[-1].removeprefix("ERROR:").strip()
