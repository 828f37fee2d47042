"""Checks of structured output that need no engine: JSON parses, nothing is empty, nesting is bounded.

Whether a schema or grammar compiles is the engine's to say; it refuses with the same outcome.
"""

import json
from typing import Any

from services.common.errors import invalid
from services.common.types import StructuredOutput

MAX_JSON_NESTING = 64
"""vLLM's limit; the cost of turning a schema into a grammar grows steeply with nesting."""
STRUCTURAL_TAG_NESTING = 16
"""What a structural tag may add around its schemas; vLLM's allowance."""
MAX_GRAMMAR_CHARACTERS = 256 * 2**10
MAX_CHOICE_STRINGS = 4096

_FIELD = "sampling.structured_output"


def validate_structured_output(output: StructuredOutput) -> None:
    """Raises ``RequestEndedError`` naming the constraint and what is wrong with it."""
    field = f"{_FIELD}.{output.kind}"
    if len(output.text) > MAX_GRAMMAR_CHARACTERS:
        raise invalid(field, f"has {len(output.text)} characters, at most {MAX_GRAMMAR_CHARACTERS} are taken")
    match output.kind:
        case "json_schema":
            _check_json(field, output.text, MAX_JSON_NESTING, (dict, bool))
        case "structural_tag":
            _check_json(field, output.text, MAX_JSON_NESTING + STRUCTURAL_TAG_NESTING, (dict,))
        case "grammar" if not output.text.strip():
            raise invalid(field, "is empty")
        case "regex" if "\x00" in output.text:
            raise invalid(field, "must not contain a NUL character")
        case "choice":
            _check_choices(field, output.choices)


def parse_json(field: str, text: str) -> Any:
    """The parsed value. Raises ``RequestEndedError`` for what is not JSON (NaN and Infinity are not).

    Integers must fit 64 bits, as they travel on as msgpack.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_int=_int64)
    except RecursionError:
        raise invalid(field, "is nested too deeply") from None
    except ValueError as error:
        raise invalid(field, f"is not JSON: {error}") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _int64(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
        raise ValueError("integers must fit 64 bits")
    return int(digits)


def _check_json(field: str, text: str, max_nesting: int, kinds: tuple[type, ...]) -> None:
    parsed = parse_json(field, text)
    if not isinstance(parsed, kinds):
        raise invalid(field, f"must be a JSON object, got {type(parsed).__name__}")
    if _nests_deeper(parsed, max_nesting):
        raise invalid(field, f"objects and arrays may nest at most {max_nesting} levels")


def _nests_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [child for node in level for child in _children(node) if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def _children(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []


def _check_choices(field: str, choices: tuple[str, ...]) -> None:
    if not 1 <= len(choices) <= MAX_CHOICE_STRINGS:
        raise invalid(field, f"must have 1 to {MAX_CHOICE_STRINGS} strings, got {len(choices)}")
