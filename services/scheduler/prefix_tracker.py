"""Which prefixes a replica has cached, by their names for routers (``services/common/prefix_hash.py``)."""

from collections.abc import Hashable, Iterable, Sequence

from services.common.prefix_hash import next_hash, root_hash


class PrefixTracker:
    """Follows the engine's cache: its hashes in, names out. One per replica, for one thread.

    Blocks whose prefix is not known by tokens alone (adapters, images, salted caches) have no name, nor what follows.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._root = root_hash(block_size)
        self._names: dict[Hashable, str] = {}
        """By the engine's hash, of every cached block that has a name."""

    def stored(
        self, parent: Hashable | None, hashes: Sequence[Hashable], token_ids: Sequence[int], *, plain: bool = True
    ) -> list[str]:
        """Blocks came into the cache, one after another.

        Args:
            parent: the engine's hash of the block before them; None: they start the prompt.
            hashes: the engine's, of each block.
            token_ids: of all of them together.
            plain: whether tokens alone make their prefix.

        Returns:
            Their names.
        """
        name = self._root if parent is None else self._names.get(parent)
        if name is None or not plain or len(token_ids) != len(hashes) * self._block_size:
            return []
        names = []
        for index, each in enumerate(hashes):
            name = next_hash(name, token_ids[index * self._block_size : (index + 1) * self._block_size])
            self._names[each] = name
            names.append(name)
        return names

    def removed(self, hashes: Iterable[Hashable]) -> list[str]:
        """Blocks left the cache; the names of those that had one."""
        return [name for each in hashes if (name := self._names.pop(each, None)) is not None]

    def cleared(self) -> list[str]:
        """All blocks left the cache; their names."""
        names = list(self._names.values())
        self._names.clear()
        return names
