"""JSON objects from files that nobody vouches for: no duplicate keys, no NaN, no bottomless nesting."""

from __future__ import annotations

import json

from quantaudit.core.errors import InputError
from quantaudit.core.serial import Json

_SHOWN = 100
_MAX_DEPTH = 16


def shown(text: str) -> str:
    """Returns foreign text quoted, escaped and cut, so that a message stays one readable line."""
    return ascii(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def parse_object(data: bytes, what: str) -> dict[str, Json]:
    """Parses one JSON object.

    Args:
        data: UTF-8.
        what: The file or the part of it, for messages.

    Raises:
        InputError: If it is anything but an object of strict JSON without duplicate keys.
    """
    try:
        value = json.loads(data.decode(), object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant)
    except RecursionError:
        raise _not_json(what, "it is nested too deeply") from None
    except ValueError as error:
        raise _not_json(what, str(error)) from None
    if not isinstance(value, dict):
        raise _not_json(what, f"it holds a {type(value).__name__}")
    if _is_deeper(value, _MAX_DEPTH):
        raise _not_json(what, "it is nested too deeply")
    return value


def _not_json(what: str, reason: str) -> InputError:
    return InputError(f"{what} is not a JSON object: {reason}", expected="strict JSON in UTF-8", fix="fetch it again")


def _is_deeper(value: Json, limit: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    children = value.values() if isinstance(value, dict) else value
    return limit == 0 or any(_is_deeper(child, limit - 1) for child in children)


def _refuse_duplicates(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shown(twice)} is there twice")
    return value


def _refuse_constant(token: str) -> Json:
    raise ValueError(f"the token {token} is no JSON number")
