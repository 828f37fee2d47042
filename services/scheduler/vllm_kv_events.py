"""What vLLM's scheduler says of its prefix cache, as names for the ledger's prefix index.

Relies on (vLLM 0.32): with ``kv_events_config.enable_kv_cache_events`` the scheduler hands the block pool's events to
its ``kv_event_publisher`` after each step, in order: ``BlockStored`` with the tokens of consecutive blocks and the hash
of the one before, ``BlockRemoved``, ``AllBlocksCleared``. Group 0 stands for all: of several kinds of layers each
caches the same prefixes.
"""

from collections.abc import Callable

from vllm.distributed.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    EventPublisher,
    KVEventBatch,
)

from services.scheduler.prefix_tracker import PrefixTracker

OnChange = Callable[[list[str], list[str]], None]
"""Names of prefixes that came into the cache, and of those that left it."""


class PrefixPublisher(EventPublisher):
    """In place of a publisher to the outside; lives on the engine core's thread."""

    def __init__(self, block_size: int, on_change: OnChange) -> None:
        super().__init__()
        self._block_size = block_size
        self._tracker = PrefixTracker(block_size)
        self._on_change = on_change

    def publish(self, events: EventBatch) -> None:
        """One step's events."""
        if not isinstance(events, KVEventBatch):
            return
        # In order: what came and left within a step has left.
        changes: dict[str, bool] = {}
        for event in events.events:
            if isinstance(event, BlockStored) and not event.group_idx:
                changes.update(dict.fromkeys(self._stored(event), True))
            elif isinstance(event, BlockRemoved) and not event.group_idx:
                changes.update(dict.fromkeys(self._tracker.removed(event.block_hashes), False))
            elif isinstance(event, AllBlocksCleared):
                changes.update(dict.fromkeys(self._tracker.cleared(), False))
        if changes:
            self._on_change(
                [name for name, is_there in changes.items() if is_there],
                [name for name, is_there in changes.items() if not is_there],
            )

    def shutdown(self) -> None:
        """Nothing to close."""

    def _stored(self, event: BlockStored) -> list[str]:
        plain = event.lora_name is None and not any(event.extra_keys or ()) and event.block_size == self._block_size
        return self._tracker.stored(event.parent_block_hash, event.block_hashes, event.token_ids, plain=plain)
