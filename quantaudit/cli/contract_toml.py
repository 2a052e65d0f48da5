"""A resolved contract as TOML that can be loaded again; comments name the contract that each value comes from."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator

from quantaudit.core.recipe_file import ResolvedContract
from quantaudit.core.serial import Json

_WIDTH = 80


def write_toml(resolved: ResolvedContract) -> str:
    """Returns the whole contract; values that no file gives are left out, as they are those of the schema."""
    return "\n".join(_lines(resolved)) + "\n"


def _lines(resolved: ResolvedContract) -> Iterator[str]:
    contract = resolved.contract
    values = contract.model_dump(mode="json")
    yield f"# digest {resolved.contract_digest}"
    if resolved.bases:
        yield f"# Everything that {contract.name} takes from {', '.join(resolved.bases)} is written out."
    for name, by in resolved.dropped.items():
        yield f"# {by} drops {name}."
    for key in values:
        if key in resolved.origins and key not in ("clauses", "base"):
            yield from _assign(key, values[key], resolved.origins[key] if resolved.bases else None)
    for clause in contract.clauses:
        yield ""
        yield "[[clauses]]"
        fields = clause.model_dump(mode="json")
        for key, origin in resolved.clause_origins[clause.name].items():
            yield from _assign(key, fields[key], origin if resolved.bases and key != "name" else None)


def _assign(key: str, value: Json, origin: str | None) -> Iterator[str]:
    comment = "" if origin is None else f"  # {origin}"
    line = f"{key} = {_literal(value)}"
    if not isinstance(value, str) or len(line + comment) <= _WIDTH:
        yield line + comment
        return
    # A backslash at the end of a line takes the break and the indentation away, so a blank stands before it.
    yield f'{key} = """\\'
    lines = textwrap.wrap(_literal(value)[1:-1], _WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    yield from (f"  {part} \\" for part in lines[:-1])
    yield f'  {lines[-1]}"""{comment}'


def _literal(value: Json) -> str:
    """Returns a TOML value; strings and numbers are written as in JSON, but for what only JSON lets stand."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
