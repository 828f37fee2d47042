"""What is compared: fixed settings, which requests pin in one system, and APEX's profiles, each in a system of its own.

The fixed settings have their own system, so that what they show does not teach a profile's replica anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.systems import forerun_config
from services.cli.grid.plan import actions_of
from services.common.expert import Expert
from services.common.expert_action import PLAIN

FIXED = "fixed"
PROFILES = {"s": "speed", "b": "balanced", "e": "efficient"}
"""APEX-S, APEX-B and APEX-E."""
PER_BLOCK = "_per_block"
"""Behind a profile's name: the expert may change from block to block, too."""
BLOCK_SIZE = 32
KV_BYTES = 768 << 20


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to serve a request."""

    name: str
    system: str
    """``FIXED``, or a key of ``PROFILES``, with ``PER_BLOCK`` behind it where routers choose experts in the others."""
    expert: str | None = None
    """Pinned. None: the choice of router or replica, or that of the request's workload, see ``by_workload``."""
    depth: int | None = None
    """Pinned; None: the replica's choice."""
    by_workload: bool = False
    """The expert is pinned to the one that did best with this profile on other prompts of the workload."""


def fixed_settings(kind: str | None, depths: Sequence[int]) -> list[Setting]:
    """Plain decoding first."""
    neural = [] if kind is None else [Expert(kind)]
    actions = actions_of([Expert.PLAIN, Expert.NGRAM, *neural], depths)
    return [Setting(each.name, FIXED, each.expert.value, each.depth or None) for each in actions]


def profile_settings(profiles: Sequence[str], per_block: Sequence[str], routed: bool) -> list[Setting]:
    """Of ``profiles``, one expert a request; of ``per_block``, all by block.

    Args:
        profiles: keys of ``PROFILES``.
        per_block: keys of ``PROFILES``.
        routed: a route model chooses the request's expert; else the one that did best in its workload has it.
    """
    by_request = [Setting(each, each, by_workload=not routed) for each in profiles]
    return by_request + [Setting(f"{each}{PER_BLOCK}", f"{each}{PER_BLOCK}" if routed else each) for each in per_block]


def profile_of(system: str) -> str:
    """Its name in configurations."""
    return PROFILES[system.removesuffix(PER_BLOCK)]


def system_config(
    model: Path, dtype: str, batch: int, experts: Mapping[str, Any], engine_args: Mapping[str, Any]
) -> dict[str, Any]:
    """Of one system: a replica of one stage. ``batch``: the largest."""
    arguments = {
        "max_model_len": 4096,
        "max_num_seqs": max(8, batch),
        "kv_cache_memory_bytes": KV_BYTES,
        "block_size": BLOCK_SIZE,
        "enable_prefix_caching": True,
        "enforce_eager": False,
        **engine_args,
    }
    config = forerun_config(model, 1, dtype, **arguments)
    config["replicas"][0]["experts"] = dict(experts)
    return config


def profile_experts(drafting: Mapping[str, Any], system: str, depth_model: Path | None, score: str) -> dict[str, Any]:
    """The ``experts`` of the replica of a profile's system; ``drafting``: what all systems have in common."""
    learned = {} if depth_model is None else {"depth_model": str(depth_model.resolve()), "depth_score": score}
    return {**drafting, "profile": profile_of(system), **learned}


def fixed_experts(drafting: Mapping[str, Any]) -> dict[str, Any]:
    """The ``experts`` of the system in which requests pin everything."""
    return {**drafting, "explore": 0.0}


PLAIN_NAME = PLAIN.name
