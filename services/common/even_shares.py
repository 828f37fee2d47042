"""Dividing evenly what cannot be cut."""


def even_shares(total: int, parts: int) -> list[int]:
    """``total`` in ``parts`` shares that differ by one at most, the larger ones first."""
    share, more = divmod(total, parts)
    return [share + (index < more) for index in range(parts)]
