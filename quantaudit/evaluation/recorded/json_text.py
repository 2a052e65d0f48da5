"""JSON from files that nobody vouches for: every fault has its line, keys are unique, nesting has an end.

NaN and infinities are let through: evaluators write them where a model overflowed, and that must be seen.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator

from quantaudit.core.errors import InputError
from quantaudit.core.serial import Json

_MAX_DEPTH = 64
_SHOWN = 60


def shown(text: str) -> str:
    """Returns foreign text quoted, escaped and cut, so that a message stays one readable line."""
    return ascii(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    r"""Yields the lines that hold something, with their numbers; only `\n` and `\r\n` end a line of JSONL."""
    for number, line in enumerate(io.StringIO(text, newline="\n"), 1):
        if stripped := line.strip():
            yield number, stripped


def parse_object(text: str, what: str) -> dict[str, Json]:
    """Parses one JSON object.

    Args:
        text: The whole of it.
        what: The file and line, for messages.

    Raises:
        InputError: If it is anything else, has a key twice, or is nested too deeply.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise _fault(what, "it is nested too deeply") from None
    except json.JSONDecodeError as error:
        within = f"line {error.lineno}, " if "\n" in text else ""
        raise _fault(what, f"{within}column {error.colno}: {error.msg}") from None
    except ValueError as error:
        raise _fault(what, str(error).split(";")[0]) from None
    if not isinstance(value, dict):
        raise _fault(what, f"it holds a {type(value).__name__}")
    if text.count("[") + text.count("{") > _MAX_DEPTH and _is_deeper(value, _MAX_DEPTH):
        raise _fault(what, "it is nested too deeply")
    return value


def _fault(what: str, reason: str) -> InputError:
    return InputError(
        f"{what} is not a JSON object: {reason}",
        expected="one whole JSON object, in UTF-8",
        fix="check that the file was written and copied to its end",
    )


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    value = dict(pairs)
    if len(value) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = counts.most_common(1)[0][0]
        raise ValueError(f"the key {shown(twice)} is there twice")
    return value


def _is_deeper(value: Json, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [child for node in level if isinstance(node, dict | list) for child in _children(node)]
        if not level:
            return False
    return True


def _children(node: Json) -> list[Json]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []
