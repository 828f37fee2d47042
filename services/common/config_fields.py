"""What a configuration model knows of itself: names at a place, and its documentation as text for ``--help``."""

import json
import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined


def known_names(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Field names that are legal at ``location``; empty where the place is no model."""
    models = [model]
    for part in location:
        if isinstance(part, int):
            continue
        fields = [candidate.model_fields[part] for candidate in models if part in candidate.model_fields]
        # A mapping's keys are the user's own: the models of its values stay the candidates.
        models = [inner for field in fields for inner in _models_in(field.annotation)] if fields else models
    return [name for candidate in models for name in candidate.model_fields]


def field_help(model: type[BaseModel]) -> str:
    """One line a field, nested ones with their path, with default and documentation."""
    return "fields:\n" + "\n".join(_field_lines(model, ""))


def _field_lines(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        documentation = " ".join((field.description or "").split())
        yield f"  {prefix}{name}{_default(field)}: {documentation}"
        for inner in _models_in(field.annotation):
            yield from _field_lines(inner, f"{prefix}{name}{_container(field.annotation)}.")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return " (required)"
    if field.default is PydanticUndefined or isinstance(field.default, BaseModel):
        return ""
    return f" [{json.dumps(field.default, default=str)}]"


def _container(annotation: Any) -> str:
    """``.N`` or ``.NAME`` for models inside lists and mappings."""
    for option in _options(annotation):
        origin = get_origin(option)
        if isinstance(origin, type) and issubclass(origin, dict):
            return ".NAME"
        if origin in (list, tuple):
            return ".N"
    return ""


def _options(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models named anywhere in an annotation: ``A | None``, ``list[A]``, ``dict[str, A]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [inner for argument in get_args(annotation) for inner in _models_in(argument)]
