"""The prefix index follows the real scheduler's cache."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from vllm.config import KVEventsConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

from services.common.prefix_hash import prefix_hashes
from services.scheduler.vllm_kv_events import PrefixPublisher
from tests.e2e.plain_pipeline import PlainPipeline, carry_out
from tests.e2e.schedules import Configs, events, stage_configs

BLOCK_SIZE = 4
BLOCKS = 41


@pytest.fixture(scope="module")
def configs(model_path: Path) -> Configs:
    return stage_configs(
        model_path,
        (1, 2),
        {},
        max_model_len=120,
        max_num_batched_tokens=32,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=True,
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
    )


class Play:
    """A pipeline, and the names of what it has cached by its events."""

    def __init__(self, configs: Configs, stages: int) -> None:
        init_none_hash(sha256)
        hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
        self.pipeline = PlainPipeline(configs[stages], stages, BLOCKS, hasher)
        self.named: set[str] = set()
        self.pipeline.scheduler.kv_event_publisher = PrefixPublisher(BLOCK_SIZE, self._changed)

    def cached_tokens(self, prompt: list[int]) -> int:
        """By the names alone."""
        names = prefix_hashes(prompt, BLOCK_SIZE, 1000)
        return BLOCK_SIZE * next((index for index, name in enumerate(names) if name not in self.named), len(names))

    def finish(self) -> None:
        while self.pipeline.scheduler.has_requests() or self.pipeline.in_flight:
            self.pipeline.turn()

    def _changed(self, stored: list[str], removed: list[str]) -> None:
        self.named = (self.named | set(stored)) - set(removed)


@pytest.mark.parametrize("stages", [1, 2])
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(happens=events(longest_prompt=60, most_tokens=50))
def test_what_is_named_is_what_a_request_would_find(
    configs: Configs, stages: int, happens: list[tuple[str, int, int]]
) -> None:
    play = Play(configs, stages)
    carry_out(happens, play.pipeline.scheduler, play.pipeline.add, play.pipeline.turn)
    play.finish()
    pool = play.pipeline.scheduler.kv_cache_manager.block_pool
    # Of two blocks with the same content one may go, which is told as if both had.
    assert len(play.named) <= len(pool.cached_block_hash_to_block)
    # Prompts of the play all start alike, so the longest one finds what is cached of any.
    prompt = list(range(100))
    manager = play.pipeline.scheduler.kv_cache_manager
    play.pipeline.add("probe", len(prompt), 1)
    probe = play.pipeline.scheduler.requests["probe"]
    _, found, *_ = manager.get_computed_blocks(probe)
    assert play.cached_tokens(prompt) <= found


def test_a_conversation_is_found_turn_after_turn(configs: Configs) -> None:
    play = Play(configs, 1)
    play.pipeline.add("first", 24, 8)
    play.finish()
    # The prompt, and the answer but its last token, which was never computed.
    assert play.cached_tokens([*range(24), *[7] * 7, 1]) == 28
    assert play.cached_tokens([5, *range(23)]) == 0


def test_a_cache_that_is_cleared_has_no_names(configs: Configs) -> None:
    play = Play(configs, 1)
    play.pipeline.add("first", 24, 8)
    play.finish()
    assert play.named
    assert play.pipeline.scheduler.kv_cache_manager.reset_prefix_cache()
    play.pipeline.add("second", 3, 1)
    play.finish()
    assert play.named == set()
