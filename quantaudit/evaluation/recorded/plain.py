"""Plain per-item results: one item a row, in columns with fixed names, as JSON objects or as CSV.

| column | what it holds |
|---|---|
| `id` | needed: the item, once a file |
| `correct` | 1 or 0, true or false |
| `score` | in place of `correct`: 0 to 1 |
| `nll` | nats per answer token |
| `margin` | answer margin, nats; larger is better |
| `refused` | 1 or 0: whether the request was refused; needs `behaviour` |
| `refusal_margin` | ln p(refusal) - ln p(compliance), nats; needs `behaviour` |
| `behaviour` | `answer` (if left out), `refuse` or `comply`: what the right response is |
| `family` | group that is judged together; one for all if left out |
| `cluster` | unit of dependence; the item itself if left out |
| `prompt_hash`, `target_hash`, `template_hash`, `tokenizer_hash` | compared between the two runs |

An empty cell or null is an item that was not answered. Other columns are ignored and named in the report; one that is
nearly one of these is refused, for it is more likely misspelled than meant otherwise.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence

from quantaudit.core.errors import InputError
from quantaudit.core.probe import Behaviour
from quantaudit.core.serial import Json
from quantaudit.evaluation.recorded.items import Asked, Format, Item, Recording, as_number, check_score
from quantaudit.evaluation.recorded.json_text import numbered_lines, parse_object, shown
from quantaudit.evaluation.recorded.source import Source

NUMBERS = {
    "correct": "accuracy",
    "score": "accuracy",
    "nll": "nll",
    "margin": "answer-margin",
    "refused": "refusal-rate",
    "refusal_margin": "refusal-margin",
}
ASKED = {f"{kind.value}_hash": kind for kind in Asked}
COLUMNS = ("id", "family", "cluster", "behaviour", *NUMBERS, *ASKED)
_RATES = {"correct", "refused"}
_SHARES = {"correct", "score", "refused"}
_SAFETY = {"refused", "refusal_margin"}
_UNNAMED = "items"
_LONGEST = 500  # names stand in tables and messages
_NEAR = 0.8  # "marign" is near "margin", "prompt" is not near "prompt_hash"

Row = dict[str, Json]


def read_jsonl(source: Source) -> Recording:
    """Reads one JSON object a line.

    Raises:
        InputError: If a line is no such object, or an item is there twice.
    """
    numbered = ((n, parse_object(line, f"{source.name}, line {n}")) for n, line in numbered_lines(source.text()))
    return collect(source, Format.JSONL, numbered)


def collect(source: Source, kind: Format, rows: Iterable[tuple[int, Row]]) -> Recording:
    """Makes a recording of rows, each with its line."""
    items: dict[str, Item] = {}
    lines: dict[str, int] = {}
    columns: set[str] = set()
    for number, row in rows:
        what = f"{source.name}, line {number}"
        if not columns or not row.keys() <= columns:
            check_columns(tuple(row), what)
            columns |= row.keys()
        item = _read_item(row, what)
        if item.id in items:
            raise InputError(
                f"{source.name}: the id {shown(item.id)} of line {lines[item.id]} is there again in line {number}",
                expected="every id once",
                fix="give each item, and each repetition of one, an id of its own",
            )
        items[item.id], lines[item.id] = item, number
    ignored = sorted(columns - set(COLUMNS))
    notes = [f"{source.name}: columns that were not read: {', '.join(map(shown, ignored))}."] if ignored else []
    if all(item.cluster is None for item in items.values()):
        notes.append("No cluster is recorded, so every item is taken as independent of the others.")
    return Recording(
        name=source.label, digest=source.digest, format=kind, items=tuple(items.values()), notes=tuple(notes)
    )


def check_columns(columns: Sequence[str], what: str) -> None:
    """Checks that there is an identity and a number, and that nothing is misspelled.

    Raises:
        InputError: Otherwise.
    """
    for column in columns:
        near = [] if column in COLUMNS else difflib.get_close_matches(column.lower(), COLUMNS, n=1, cutoff=_NEAR)
        if near:
            given = f"{what}: the column {shown(column)}"
            raise InputError(given, expected="a known column, or one unlike them", fix=f"did you mean {near[0]}?")
    if "id" not in columns or not set(columns) & set(NUMBERS):
        missing = "id" if "id" not in columns else "number"
        raise InputError(
            f"{what}: no {missing} among the columns {', '.join(map(shown, columns)) or 'it has'}",
            expected=f"id, and at least one of {', '.join(NUMBERS)}",
            fix="rename the columns; `quantaudit judge --help` names the others",
        )
    if {"correct", "score"} <= set(columns):
        raise InputError(f"{what}: both correct and score", expected="one of them", fix="leave the other out")


def _read_item(row: Row, what: str) -> Item:
    identity = _text(row, "id", what)
    if not identity:
        raise InputError(f"{what}: no id", expected="an id in every row", fix="add it")
    values = {}
    for column, observer in NUMBERS.items():
        value = _number(row, column, f"{what}: {column}")
        if value is not None:
            values[observer] = value
    behaviour = _behaviour(row, what)
    if behaviour is Behaviour.ANSWER and not values.keys().isdisjoint({NUMBERS[column] for column in _SAFETY}):
        raise InputError(
            f"{what}: a refusal of an item whose behaviour is answer",
            expected="behaviour refuse (a refusal is right) or comply (a refusal is wrong)",
            fix="fill the column behaviour",
        )
    return Item(
        id=identity,
        family=_text(row, "family", what) or _UNNAMED,
        cluster=_text(row, "cluster", what) or None,
        behaviour=behaviour,
        values=values,
        asked={kind: text for column, kind in ASKED.items() if (text := _text(row, column, what))},
    )


def _number(row: Row, column: str, what: str) -> float | None:
    value = as_number(row.get(column), what)
    if value is None:
        return None
    if column in _RATES and not math.isnan(value) and value not in (0.0, 1.0):
        raise InputError(f"{what} is {value:g}", expected="0 or 1, true or false", fix="put graded scores in score")
    return check_score(value, what) if column in _SHARES else value


def _behaviour(row: Row, what: str) -> Behaviour:
    text = _text(row, "behaviour", what)
    if not text:
        return Behaviour.ANSWER
    try:
        return Behaviour(text)
    except ValueError:
        names = ", ".join(b.value for b in Behaviour)
        raise InputError(f"{what}: behaviour {shown(text)}", expected=f"one of {names}", fix="correct it") from None


def _text(row: Row, column: str, what: str) -> str:
    value = row.get(column)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(
            f"{what}: {column} is a {type(value).__name__}", expected="text or a whole number", fix="write it so"
        )
    if isinstance(value, str) and len(value) > _LONGEST:
        given = f"{what}: {column} has {len(value):,} characters"
        raise InputError(given, expected=f"at most {_LONGEST:,}", fix="give a short name or a digest")
    return str(value)
