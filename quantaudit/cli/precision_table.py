"""The realised-precision map as a table; layers that are alike share their lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby

from quantaudit.api import PrecisionMap, PrecisionRow

_HEAD = ("layers", "matrix", "packed", "bf16", "fp32", "missing", "bits/weight")


def print_precision(precision: PrecisionMap) -> None:
    """Prints what is declared, what is stored, and where they differ."""
    sys.stdout.write("\n".join(describe_precision(precision)) + "\n")


def describe_precision(precision: PrecisionMap) -> Iterator[str]:
    """Yields the lines of the table and what follows it."""
    yield f"declared: {precision.declared or 'no quantization'}"
    yield _line(_HEAD)
    for layers, rows in _merge(precision.rows):
        for row in rows:
            counts = (row.num_packed, row.num_bfloat16, row.num_float32, row.num_missing)
            yield _line((layers, row.role.value, *map(str, counts), f"{row.bits_per_weight:.2f}"))
    yield (
        f"{precision.num_packed:,} of {precision.num_matrices:,} expert matrices are packed; "
        f"{precision.bits_per_weight:.2f} bits a weight"
    )
    yield from (f"finding: {finding}" for finding in precision.findings)


def _merge(rows: tuple[PrecisionRow, ...]) -> Iterator[tuple[str, list[PrecisionRow]]]:
    """Yields runs of consecutive layers with equal rows: their numbers, and the rows of the first."""
    by_layer = [list(group) for _, group in groupby(rows, key=lambda row: row.layer)]
    numbered = enumerate(by_layer)
    for _, run in groupby(numbered, key=lambda pair: (pair[1][0].layer - pair[0], _without_layer(pair[1]))):
        alike = [group for _, group in run]
        first, last = alike[0][0].layer, alike[-1][0].layer
        yield (str(first) if first == last else f"{first}-{last}"), alike[0]


def _without_layer(rows: list[PrecisionRow]) -> list[PrecisionRow]:
    return [row.model_copy(update={"layer": 0}) for row in rows]


def _line(cells: tuple[str, ...]) -> str:
    words = [f"{cell:<{len(head)}}" for cell, head in zip(cells[:2], _HEAD[:2], strict=True)]
    numbers = [f"{cell:>{len(head)}}" for cell, head in zip(cells[2:], _HEAD[2:], strict=True)]
    return "  ".join([*words, *numbers])
