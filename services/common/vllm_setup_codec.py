"""vLLM's worker set-up values (KV cache specs and configurations) as tagged msgpack with a closed type list.

Set-up calls carry whatever KV cache dataclasses the model needs, so unlike the step codec this one is generic:
a value is plain data, or a map ``{"$": type name, ...fields}`` whose type must be on the list. Nothing else can
be built by decoding, and nothing is pickled.
"""

import dataclasses
import enum
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import msgspec
import torch
from vllm.v1 import kv_cache_interface
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.worker.worker_base import CompilationTimes

_TAG = "$"


def _closed_type_list() -> dict[str, type]:
    named = {
        value.__name__: value
        for value in vars(kv_cache_interface).values()
        if isinstance(value, type)
        and value.__module__ == kv_cache_interface.__name__
        and (dataclasses.is_dataclass(value) or issubclass(value, enum.Enum))
    }
    return named | {"MultipleOf": MultipleOf, "CompilationTimes": CompilationTimes}


_TYPES = _closed_type_list()


def encode_setup(value: Any) -> bytes:
    """Any set-up value. Raises ``TypeError`` for a type that is not on the list."""
    return msgspec.msgpack.encode(_to_plain(value))


def decode_setup(data: bytes) -> Any:
    """Inverse of ``encode_setup``. Raises ``msgspec.DecodeError`` or ``ValueError`` for anything foreign."""
    return _from_plain(msgspec.msgpack.decode(data))


def _to_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_plain(item) for item in value]
    if isinstance(value, enum.Enum | torch.dtype | Fraction | tuple | dict | MultipleOf) or _is_listed_dataclass(value):
        return _to_tagged(value)
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    raise TypeError(f"a worker call carries a {type(value).__name__}, which is not a set-up type")


def _to_tagged(value: Any) -> dict[str, Any]:
    name = type(value).__name__
    if isinstance(value, torch.dtype):
        return {_TAG: "dtype", "name": str(value).removeprefix("torch.")}
    if isinstance(value, Fraction):
        return {_TAG: "Fraction", "of": [value.numerator, value.denominator]}
    if isinstance(value, dict):
        return {_TAG: "dict", "items": [[_to_plain(key), _to_plain(item)] for key, item in value.items()]}
    if isinstance(value, tuple) and name not in _TYPES:
        return {_TAG: "tuple", "items": [_to_plain(item) for item in value]}
    if name not in _TYPES:
        raise TypeError(f"a worker call carries a {name}, which is not a set-up type")
    return {_TAG: name} | {field: _to_plain(item) for field, item in _fields_of(value).items()}


def _fields_of(value: Any) -> dict[str, Any]:
    if isinstance(value, enum.Enum):
        return {"value": value.value}
    if isinstance(value, CompilationTimes):
        return dict(value._asdict())
    if isinstance(value, MultipleOf):
        return {"base": value.base}
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _is_listed_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and type(value).__name__ in _TYPES


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    tag = value.get(_TAG)
    build = _BUILDERS.get(tag) if isinstance(tag, str) else None
    if build is None:
        raise ValueError(f"not a set-up type: {tag!r}")
    return build({name: item for name, item in value.items() if name != _TAG})


def _build_dtype(fields: dict[str, Any]) -> torch.dtype:
    dtype = getattr(torch, fields["name"], None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"no such dtype: {fields['name']!r}")
    return dtype


def _builder_of(listed: type) -> Callable[[dict[str, Any]], Any]:
    return lambda fields: listed(**{name: _from_plain(item) for name, item in fields.items()})


_BUILDERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "tuple": lambda fields: tuple(_from_plain(fields["items"])),
    "dict": lambda fields: {_from_plain(key): _from_plain(item) for key, item in fields["items"]},
    "Fraction": lambda fields: Fraction(*fields["of"]),
    "dtype": _build_dtype,
} | {name: _builder_of(listed) for name, listed in _TYPES.items()}
