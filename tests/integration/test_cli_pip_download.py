"""Downloads through the real pip, from a folder in the place of a registry."""

import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from services.cli.errors import CliError
from services.cli.pip_download import download_wheel

NAME = "forerun_test_weights"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "registry"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def put_wheel(registry: Path, version: str) -> Path:
    wheel = registry / f"{NAME}-{version}-py3-none-any.whl"
    info = f"{NAME}-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("weights.bin", b"x" * 1000)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def test_a_wheel_arrives_as_it_is(registry: Path, tmp_path: Path) -> None:
    wheel = put_wheel(registry, "1.0")
    put_wheel(registry, "1.1")
    target = tmp_path / "target"
    target.mkdir()
    seen: list[int] = []
    arrived = download_wheel(f"{NAME}==1.0", target, seen.append)
    assert arrived.read_bytes() == wheel.read_bytes()
    assert all(0 <= size <= wheel.stat().st_size for size in seen)


def test_what_is_not_there_is_named(registry: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(CliError, match=f"pip could not download {NAME}==9: No matching distribution"):
        download_wheel(f"{NAME}==9", target, lambda _: None)


DOWNLOADS_THEN_IMPORTS = """
import sys
from pathlib import Path
from services.cli.pip_download import download_wheel
download_wheel(sys.argv[1], Path(sys.argv[2]), lambda _: None)
import setuptools  # as vLLM does, later in the same command
"""


def test_setuptools_can_be_imported_afterwards(registry: Path, tmp_path: Path) -> None:
    put_wheel(registry, "1.0")
    target = tmp_path / "target"
    target.mkdir()
    command = [sys.executable, "-c", DOWNLOADS_THEN_IMPORTS, f"{NAME}==1.0", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_missing_pip_is_named_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("services.cli.pip_download.distribution", nothing)
    with pytest.raises(CliError, match=r"run: .* -m ensurepip"):
        download_wheel(f"{NAME}==1.0", tmp_path, lambda _: None)
