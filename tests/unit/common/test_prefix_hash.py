"""Names of prompt prefixes."""

from hypothesis import given
from hypothesis import strategies as st

from services.common.prefix_hash import HASH_BYTES, next_hash, prefix_hashes, root_hash

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=60)


@given(tokens, tokens, st.integers(1, 9))
def test_prompts_share_the_names_of_what_they_share(left: list[int], right: list[int], block_size: int) -> None:
    shared = 0
    for a, b in zip(left[:-1], right[:-1], strict=False):
        if a != b:
            break
        shared += 1
    names = [prefix_hashes(each, block_size, 100) for each in (left, right)]
    same = sum(a == b for a, b in zip(*names, strict=False))
    assert same == min(shared // block_size, *(len(each) for each in names))
    assert names[0][:same] == names[1][:same]


def test_the_last_token_is_no_part_of_a_cached_block() -> None:
    assert [len(prefix_hashes(list(range(count)), 4, 100)) for count in (0, 1, 4, 5, 8, 9)] == [0, 0, 0, 1, 1, 2]
    assert len(prefix_hashes(list(range(1000)), 4, 7)) == 7


def test_names_are_chained_and_depend_on_the_block_size() -> None:
    first = next_hash(root_hash(2), [1, 2])
    assert prefix_hashes([1, 2, 3, 4, 5], 2, 9) == [first, next_hash(first, [3, 4])]
    assert prefix_hashes([1, 2, 3, 4, 5], 4, 9)[0] not in prefix_hashes([1, 2, 3, 4, 5], 2, 9)
    assert len(first) == 2 * HASH_BYTES
