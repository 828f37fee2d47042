"""The ribbon: a mark for each draft token, and why."""

from rich.console import Console

from services.cli.block_ribbon import block_ribbon
from services.common import trace_names as names
from services.common.trace_store import StoredSpan


def block(index: int, method: str, asked: int, drafted: int, accepted: int) -> StoredSpan:
    return StoredSpan(
        trace_id="ab" * 16,
        span_id=f"{index:016x}",
        parent_span_id=None,
        name=names.SPAN_SPEC_BLOCK,
        kind="internal",
        service="engine-core",
        process_id=1,
        start_ns=index * 10**7,
        end_ns=index * 10**7 + 5_000_000,
        status="ok",
        status_message="",
        attributes={
            names.SPEC_BLOCK_INDEX: index,
            names.SPEC_METHOD: method,
            names.SPEC_DEPTH: asked,
            names.SPEC_DRAFTED: drafted,
            names.SPEC_ACCEPTED: accepted,
            names.SPEC_REASON: "averages",
            names.SPEC_EXPECTED_ACCEPTED: 1.5,
        },
    )


def drawn(*spans: StoredSpan, blocks: bool = False) -> list[str]:
    ribbon = block_ribbon(spans, blocks=blocks)
    if ribbon is None:
        return []
    console = Console(width=120, record=True)
    with console.capture() as capture:
        console.print(ribbon)
    return capture.get().splitlines()


def test_every_draft_token_has_its_mark() -> None:
    _, first, second = drawn(block(1, "ngram", 8, 3, 1), block(0, "eagle3", 4, 4, 4))
    assert first.split() == ["0", "eagle3", "■■■■", "4", "of", "4", "(expected", "1.5)", "averages", "5.0", "ms"]
    assert second.split()[2] == "■□□·····"


def test_only_the_first_blocks_unless_all_are_asked_for() -> None:
    many = [block(index, "ngram", 2, 2, 0) for index in range(30)]
    assert drawn(*many)[-1] == "10 more blocks; --blocks draws them"
    assert len(drawn(*many, blocks=True)) == 31


def test_nothing_without_blocks_of_experts() -> None:
    assert drawn(block(0, names.METHOD_SP, 1, 1, 1)) == []
