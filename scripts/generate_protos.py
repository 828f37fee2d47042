"""Generates ``generated/forerun/**`` from ``protos/``; the only way that code is made.

The proto path equals the Python import path, so nothing is patched afterwards. The tool versions are pinned
in ``pyproject.toml`` ([build-system]); this file is called by the build hook and by ``make protos``.
"""

import shutil
import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc


def generate(root: Path) -> None:
    """Rewrites ``root/generated`` from ``root/protos``. Raises ``RuntimeError`` when protoc refuses a file."""
    source, target = root / "protos", root / "generated"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    protos = sorted(str(path.relative_to(source)) for path in source.rglob("*.proto"))
    arguments = [
        "protoc",
        f"--proto_path={source}",
        f"--proto_path={files('grpc_tools') / '_proto'}",
        f"--python_out={target}",
        f"--grpc_python_out={target}",
        f"--mypy_out=quiet:{target}",
        f"--mypy_grpc_out=quiet:{target}",
        *protos,
    ]
    if protoc.main(arguments) != 0:
        raise RuntimeError(f"protoc failed on {protos}")
    for folder in {path.parent for path in target.rglob("*.py")} | {target / "forerun"}:
        (folder / "__init__.py").touch()
    for folder in (path for path in (target / "forerun").rglob("*") if path.is_dir()):
        (folder / "__init__.py").touch()


if __name__ == "__main__":
    generate(Path(__file__).resolve().parent.parent)
    sys.exit(0)
