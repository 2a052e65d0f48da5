"""The README's table: which MXFP4 a library means, and how far that is from `mxfp4-even` on bf16 weights.

`python -m benchmarks.conformance.readme` prints the sentence and the table from the committed report.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.conformance.digest import count_functions, families, implementations, is_restated, percent, quantizers
from benchmarks.conformance.families import MXFP4, yardstick
from benchmarks.conformance.table import Conformance, Unchecked
from quantaudit.backends import backend_names, load_backend
from quantaudit.backends.protocol import Origin

_OTHERS = {"INT4 g32": "of INT4 in groups of 32,", "E4M3 block128": "of FP8 in blocks of 128 x 128,"}
REPORT = Path(__file__).parents[2] / "reports" / "conformance.json"


def format_mxfp4_table(path: Path = REPORT) -> str:
    """Returns the sentence and the markdown table of the README, made from the committed report.

    Args:
        path: The report.
    """
    report = Conformance.from_json(path.read_text(encoding="utf-8"))
    return f"{count_in_words(report)}\n\n{mxfp4_table(report)}"


def count_in_words(report: Conformance) -> str:
    """Says how many implementations are how many functions: of MXFP4, and of two other families if they are there."""
    counts = {family: (len(quantizers(report, family)), count_functions(report, family)) for family in families(report)}
    others = [
        f"{words} {counts[family][0]} are {counts[family][1]}" for family, words in _OTHERS.items() if family in counts
    ]
    restated = sum(is_restated(report, name) for name in quantizers(report, MXFP4))
    total, functions = counts[MXFP4]
    return (
        f"**{total} public implementations of MXFP4 are {functions} different functions** on the same bf16 weights "
        f"({total - restated} run, {restated} restated){''.join(f'; {words}' for words in others)}."
    )


def mxfp4_table(report: Conformance) -> str:
    """Returns the markdown table of a report: one row a function, and the implementations of it."""
    standard = yardstick(MXFP4)
    lines = [
        f"| implementations | scale rule | ties | scales unlike `{standard}` | values unlike `{standard}` |",
        "|---|---|---|---:|---:|",
    ]
    for row in implementations(report, MXFP4, absent_quantizers(report.unchecked)):
        shares = (None, None) if row.pair is None else (row.pair.shares.scales, row.pair.shares.values)
        differing = [f"{percent(s)} %" if row.pair is not None else "not checked" for s in shares]
        names = ", ".join(_label(report, name) for name in row.names)
        lines.append(f"| {names} | {row.scale} | {row.ties} | {' | '.join(differing)} |")
    return "\n".join(lines) + "\n"


def _label(report: Conformance, name: str) -> str:
    """Returns a quantizer as `certify` takes it; one that is restated in italics, without its backend."""
    return f"*{name.partition(':')[2]}*" if is_restated(report, name) else f"`{name}`"


def absent_quantizers(unchecked: tuple[Unchecked, ...]) -> Iterator[tuple[str, str]]:
    """Yields names and schemes of the quantizers of libraries that were not checked."""
    for item in unchecked:
        if item.name in backend_names() and load_backend(item.name).origin is Origin.LIBRARY:
            for offer in load_backend(item.name).schemes().values():
                yield f"{item.name}:{offer.name}", offer.catalogue


if __name__ == "__main__":
    print(format_mxfp4_table(), end="")
