"""Generates the gRPC code afresh into a temporary folder and compares it with ``generated/``.

Run by ``make quality``. Fails when protoc refuses a file, or when the installed stubs are older than the protos.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
from filecmp import cmpfiles
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 300
PROGRAM = "import pathlib, sys, generate_protos; generate_protos.generate(pathlib.Path(sys.argv[1]))"


def main() -> int:
    """Exit code: 0 when both are equal."""
    with tempfile.TemporaryDirectory() as folder:
        fresh_root = Path(folder)
        (fresh_root / "protos").symlink_to(ROOT / "protos")
        _generate(fresh_root)
        differing = _differences(fresh_root / "generated", ROOT / "generated")
    for name in differing:
        sys.stderr.write(f"generated/{name} is not what protos/ gives; run: make protos\n")
    return 1 if differing else 0


def _generate(fresh_root: Path) -> None:
    """Runs the generator with the tools that pyproject.toml pins for the build."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        pins: list[str] = tomllib.load(file)["build-system"]["requires"]
    tools = [part for pin in pins for part in ("--with", pin)]
    uv = Path(sys.executable).parent / "uv"
    environment = ["--no-project", "--isolated", "-p", sys.executable, *tools]
    subprocess.run(
        [uv, "run", "--quiet", *environment, "python", "-c", PROGRAM, str(fresh_root)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "scripts")},
        check=True,
        timeout=TIMEOUT_S,
    )


def _differences(fresh: Path, installed: Path) -> list[str]:
    def names(folder: Path) -> set[str]:
        return {str(path.relative_to(folder)) for path in folder.rglob("*.py*") if path.suffix in (".py", ".pyi")}

    both = sorted(names(fresh) | names(installed))
    equal, _, _ = cmpfiles(fresh, installed, both, shallow=False)
    return sorted(set(both) - set(equal))


if __name__ == "__main__":
    sys.exit(main())
