"""Contracts that build on another: what the file gives replaces what it inherits, value by value.

A clause with a known name overrides only the fields it gives and keeps its place, one with a new name is appended, and
`drop` leaves clauses out. `name` and `description` are never inherited: they say what this contract is. Whatever has
no effect (a clause block that gives nothing, a dropped name that is not there) is refused: its author expected one.

Here are plain tables as TOML has them; `recipe_file` reads and validates them.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from quantaudit.core.errors import InputError

Table: TypeAlias = dict[str, object]

DROP = "drop"
_NOT_INHERITED = frozenset({"name", "description", "schema_version", "base"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Layered:
    """A contract's table with everything that it inherits written out.

    Attributes:
        table: What is validated: all clauses, no `drop`.
        positions: For every clause its number in the file itself; `None` where the file does not mention it.
        origins: Root key -> name of the contract that gives it.
        clause_origins: Clause name -> field -> name of the contract that gives it.
        dropped: Clause name -> name of the contract that drops it.
    """

    table: Table
    positions: tuple[int | None, ...] = ()
    origins: dict[str, str] = field(default_factory=dict)
    clause_origins: dict[str, dict[str, str]] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)


def inherit(own: Table, base: Layered | None, what: str) -> Layered:
    """Lays a contract's own table over that of its base.

    Args:
        own: The table of the file; values of wrong types are left for validation.
        base: The resolved base, if there is one.
        what: The file, as messages name it.

    Raises:
        InputError: If something in it has no effect, or a name is given twice.
    """
    beneath = base or Layered(table={})
    clauses = _tables(own.get("clauses", []))
    if clauses is None:
        return Layered(table={key: value for key, value in own.items() if key != DROP})
    name = str(own.get("name"))
    inherited = {str(clause["name"]): clause for clause in _tables(beneath.table.get("clauses", [])) or []}
    dropped = _dropped(own, inherited, what, has_base=base is not None)
    _check_names(clauses, inherited, dropped, what)

    merged = {key: dict(clause) for key, clause in inherited.items() if key not in dropped}
    origins = {key: dict(beneath.clause_origins[key]) for key in merged}
    numbers: dict[str, int] = {}
    for number, clause in enumerate(clauses):
        key = _name_of(clause, number)
        merged[key] = merged.get(key, {}) | clause
        origins[key] = origins.get(key, {}) | dict.fromkeys(clause, name)
        numbers[key] = number
    kept = {key: value for key, value in beneath.table.items() if key not in _NOT_INHERITED}
    given = {key: value for key, value in own.items() if key != DROP}
    return Layered(
        table=kept | given | {"clauses": list(merged.values())},
        positions=tuple(numbers.get(key) for key in merged),
        origins={key: beneath.origins[key] for key in kept if key in beneath.origins} | dict.fromkeys(given, name),
        clause_origins=origins,
        dropped={key: by for key, by in beneath.dropped.items() if key not in merged} | dict.fromkeys(dropped, name),
    )


def _tables(value: object) -> list[Table] | None:
    """Returns the clauses, or `None` where they are no list of tables and validation has to say so."""
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        return value
    return None


def _name_of(clause: Table, number: int) -> str:
    """Returns the clause's name; one without a name gets a key that no name can be, and validation refuses it."""
    name = clause.get("name")
    return name if isinstance(name, str) else f"\0{number}"


def _dropped(own: Table, inherited: Iterable[str], what: str, *, has_base: bool) -> list[str]:
    """Returns the names that are dropped, each known and given once."""
    value = own.get(DROP, [])
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InputError(f"{what}: drop = {value!r}", expected="an array of clause names", fix="correct drop")
    if DROP in own and not has_base:
        raise InputError(f"{what}: drop without a base", expected="base beside drop", fix="add base, or remove drop")
    known = tuple(inherited)
    for name, count in Counter(value).items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            fix = f"did you mean {', '.join(near)}?" if near else f"remove {name!r} from drop"
            raise InputError(f"{what}: drop names {name!r}", expected=f"one of {', '.join(known)}", fix=fix)
        if count > 1:
            raise InputError(f"{what}: drop names {name!r} twice", expected="each name once", fix="remove one of them")
    return value


def _check_names(clauses: list[Table], inherited: Iterable[str], dropped: list[str], what: str) -> None:
    """Checks that no clause is given twice, is dropped as well, or gives nothing."""
    names = [_name_of(clause, number) for number, clause in enumerate(clauses)]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise InputError(
            f"{what}, with two clauses {repeated[0]!r}",
            expected="a name of its own for each clause",
            fix="rename one of them, or write both into one [[clauses]] table",
        )
    known = set(inherited)
    for name, clause in zip(names, clauses, strict=True):
        if name in dropped:
            raise InputError(
                f"{what}: the clause {name!r} is both dropped and given",
                expected="one of them",
                fix=f"remove {name!r} from drop, or give the new clause another name",
            )
        if name in known and len(clause) == 1:
            raise InputError(
                f"{what}: the clause {name!r} of the base is named, and nothing of it is changed",
                expected="at least one other key, such as margin",
                fix="give the value to change, or remove the table: it is inherited as it is",
            )
