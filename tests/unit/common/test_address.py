"""Addresses as text."""

import pytest

from services.common.address import is_loopback, join_address, split_address


@pytest.mark.parametrize(
    ("text", "parts"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:65535", ("::1", 65535)), ("a.example:50051", ("a.example", 50051))],
)
def test_split_and_join_are_inverse(text: str, parts: tuple[str, int]) -> None:
    assert split_address(text) == parts
    assert join_address(*parts) == text


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:x", "host:65536", "host:-1", "::1:80", "host:1:2"])
def test_malformed_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"host:port|brackets"):
        split_address(text)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", True), ("127.3.2.1", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("a.example", False)],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
