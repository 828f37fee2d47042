"""Shared domain types to protobuf and back. Pure; tested by round trips of arbitrary values.

``from_proto`` of sampling parameters also validates: what leaves here is legal, whoever sent it.
"""
