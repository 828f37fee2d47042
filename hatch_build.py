"""Build hook: generates the gRPC code, so that an install (editable or wheel) never sees stale stubs."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent / "scripts"))


class GenerateProtos(BuildHookInterface):  # type: ignore[type-arg]
    """Runs ``scripts/generate_protos.py`` before every build."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  hatchling's signature
        from generate_protos import generate  # noqa: PLC0415  (path is known only now)

        generate(Path(self.root))
