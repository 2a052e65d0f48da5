"""The README's table: which MXFP4 a library means, and how far that is from `mxfp4-even` on bf16 weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.conformance.digest import YARDSTICK, implementations, percent
from benchmarks.conformance.sides import mxfp4_schemes
from benchmarks.conformance.table import Conformance, Unchecked
from quantaudit.backends import backend_names, load_backend

REPORT = Path(__file__).parents[2] / "reports" / "conformance.json"


def format_mxfp4_table(path: Path = REPORT) -> str:
    """Returns the markdown table, made from the committed report.

    Args:
        path: The report.
    """
    return mxfp4_table(Conformance.from_json(path.read_text(encoding="utf-8")))


def mxfp4_table(report: Conformance) -> str:
    """Returns the markdown table of a report: one row a rule, and the implementations of it."""
    lines = [
        f"| implementation | scale rule | ties | scales unlike `{YARDSTICK}` | values unlike `{YARDSTICK}` |",
        "|---|---|---|---:|---:|",
    ]
    for row in implementations(report, absent_quantizers(report.unchecked)):
        shares = (None, None) if row.pair is None else (row.pair.shares.scales, row.pair.shares.values)
        differing = [f"{percent(s)} %" if row.pair is not None else "not checked" for s in shares]
        lines.append(f"| {', '.join(row.names)} | {row.scale} | {row.ties} | {' | '.join(differing)} |")
    return "\n".join(lines) + "\n"


def absent_quantizers(unchecked: tuple[Unchecked, ...]) -> Iterator[tuple[str, str]]:
    """Yields names and schemes of the MXFP4 quantizers of backends that were not checked."""
    for item in unchecked:
        if item.name not in backend_names():
            continue
        for offer in load_backend(item.name).schemes().values():
            if offer.catalogue in mxfp4_schemes():
                yield f"{item.name}:{offer.name}", offer.catalogue
