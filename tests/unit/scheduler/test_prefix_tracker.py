"""From the engine's cache events to names of prefixes."""

from services.common.prefix_hash import prefix_hashes
from services.scheduler.prefix_tracker import PrefixTracker

PROMPT = list(range(13))
NAMES = prefix_hashes(PROMPT, 4, 9)


def test_blocks_are_named_as_routers_name_them() -> None:
    tracker = PrefixTracker(4)
    assert tracker.stored(None, ["a", "b"], PROMPT[:8]) == NAMES[:2]
    assert tracker.stored("b", ["c"], PROMPT[8:12]) == NAMES[2:]
    assert tracker.removed(["c", "unknown"]) == [NAMES[2]]
    assert sorted(tracker.cleared()) == sorted(NAMES[:2])
    assert tracker.removed(["a"]) == []


def test_what_tokens_alone_do_not_say_has_no_name_nor_what_follows() -> None:
    tracker = PrefixTracker(4)
    assert tracker.stored(None, ["a"], PROMPT[:4], plain=False) == []
    assert tracker.stored("a", ["b"], PROMPT[4:8]) == []
    assert tracker.stored("never seen", ["c"], PROMPT[4:8]) == []
    assert tracker.stored(None, ["d"], PROMPT[:3]) == [], "blocks of another size"
    assert tracker.cleared() == []
