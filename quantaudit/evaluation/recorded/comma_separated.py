"""CSV of per-item results: the columns of `plain`, a header first; cells hold numbers, true or false, or nothing."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator

from quantaudit.core.errors import InputError
from quantaudit.core.serial import Json
from quantaudit.evaluation.recorded.items import Format, Recording
from quantaudit.evaluation.recorded.json_text import shown
from quantaudit.evaluation.recorded.plain import NUMBERS, Row, check_columns, collect
from quantaudit.evaluation.recorded.source import Source

_WORDS: dict[str, float | None] = {"": None, "true": 1.0, "false": 0.0}


def read_csv(source: Source) -> Recording:
    """Reads a header and one item a row.

    Raises:
        InputError: If a row has another length, a cell is no number, or an item is there twice.
    """
    return collect(source, Format.CSV, _rows(source))


def _rows(source: Source) -> Iterator[tuple[int, Row]]:
    reader = csv.reader(io.StringIO(source.text(), newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader)]
        _check_header(header, source.name)
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield reader.line_num, _read_row(header, cells, f"{source.name}, line {reader.line_num}")
    except csv.Error as error:
        raise InputError(
            f"{source.name}, line {reader.line_num}: {error}", expected="CSV with commas", fix="export it again"
        ) from None


def _check_header(header: list[str], name: str) -> None:
    check_columns(header, f"{name}, line 1")
    twice = [column for column, count in Counter(header).items() if count > 1]
    if twice:
        given = f"{name}, line 1: the column {shown(twice[0])} is there twice"
        raise InputError(given, expected="every column once", fix="rename or remove one")


def _read_row(header: list[str], cells: list[str], what: str) -> Row:
    if len(cells) != len(header):
        raise InputError(
            f"{what}: {len(cells)} cells under {len(header)} columns",
            expected="a cell for every column",
            fix="check that the file was copied to its end, and that texts with commas are quoted",
        )
    named = zip(header, (cell.strip() for cell in cells), strict=True)
    return {name: _number(cell, f"{what}: {name}") if name in NUMBERS else cell for name, cell in named}


def _number(cell: str, what: str) -> Json:
    word = cell.lower()
    if word in _WORDS:
        return _WORDS[word]
    try:
        return float(cell)
    except ValueError:
        raise InputError(
            f"{what} is {shown(cell)}", expected="a number, true, false or nothing", fix="correct it"
        ) from None
