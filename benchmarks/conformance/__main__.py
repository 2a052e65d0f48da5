"""`python -m benchmarks.conformance`: runs the quantizers and writes the report as JSON, markdown and HTML."""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

from benchmarks.conformance.collect import collect
from benchmarks.conformance.data import COLUMNS, POOLED, ROWS, SINGLE
from benchmarks.conformance.digest import summarize
from benchmarks.conformance.observe import Draws
from benchmarks.conformance.sides import find_sides
from benchmarks.conformance.write import write

REPORTS = Path(__file__).parents[2] / "reports"
BAND = 128


def main(arguments: list[str] | None = None) -> int:
    """Writes the report; returns 1 if a published figure is not met and nobody said why, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conformance", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of the weights (default: %(default)s)")
    parser.add_argument("--draws", type=int, default=SINGLE, help="draws of the weights (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=REPORTS, help="folder for the three files (default: reports)")
    parser.add_argument("--backend", action="append", help="this backend only (repeat)")
    given = parser.parse_args(arguments)
    if given.rows < 2 * BAND or given.rows % BAND:
        parser.error(f"--rows {given.rows}: a multiple of {BAND} is needed, at least {2 * BAND}")
    if given.draws < 2:
        parser.error(f"--draws {given.draws}: one draw has no interval, give at least 2")
    only = "".join(f" --backend {name}" for name in given.backend or ())
    fewer = "" if given.draws == SINGLE else f" --draws {given.draws}"
    rows = "" if given.rows == ROWS else f" --rows {given.rows}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries, about kernels of other machines
        sides, absent = find_sides(given.backend)
        draws = Draws(given.rows, COLUMNS, min(POOLED, given.draws), given.draws)
        report = collect(sides, absent, f"python -m benchmarks.conformance{rows}{fewer}{only}", draws)
    for path in write(report, given.output):
        print(path)
    print(summarize(report))
    return 1 if report.unsettled() else 0


if __name__ == "__main__":
    sys.exit(main())
