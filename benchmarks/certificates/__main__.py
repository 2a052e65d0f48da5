"""`python -m benchmarks.certificates`: runs what is missing in the work folder and writes the table.

A stopped run goes on where it was; `--page-only` writes the table from what is there.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path

from benchmarks.certificates.cells import BOTH, Cell, Made, list_cells, read_cell, run_cell
from benchmarks.certificates.markdown import render_markdown, summarize
from benchmarks.certificates.table import Certificates, Missing, describe_machine, describe_versions, make_row, missing
from quantaudit.core.errors import InputError, MissingLibraryError
from quantaudit.core.heap import keep_freed_memory
from quantaudit.core.serial import write_atomically

REPORTS = Path(__file__).parents[2] / "reports"
WORK = REPORTS / "runs" / "certificates"
NOT_RUN = "not run"


def main(arguments: list[str] | None = None) -> int:
    """Runs what is missing, writes certificates.json and .md, and prints what they come to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.certificates", description=__doc__)
    parser.add_argument("work", nargs="?", type=Path, default=WORK, help="folder of the certificates")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="these quantizers only (repeat)")
    parser.add_argument("--dtype", action="append", choices=BOTH, help="this dtype only (default: both, fp32 first)")
    parser.add_argument("--deep", action="store_true", help="try what takes minutes to hours, too")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--page-only", action="store_true", help="write the table from what is there")
    parser.add_argument("--output", type=Path, default=REPORTS, help="folder for the two files (default: reports)")
    given = parser.parse_args(arguments)
    keep_freed_memory()
    given.work.mkdir(parents=True, exist_ok=True)
    cells = list_cells(given.only, tuple(given.dtype or BOTH), is_deep=given.deep)
    if not cells:
        parser.error(f"no quantizer is named {' or '.join(given.only)}")
    reasons: dict[Cell, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries, about kernels of other machines
        if not given.page_only:
            reasons = _run(cells, given.work, given.threads)
    table = gather(given.work, reasons)
    for suffix, text in (("json", table.to_json()), ("md", render_markdown(table))):
        path = given.output / f"certificates.{suffix}"
        write_atomically(path, text.encode())
        print(path)
    print(summarize(table))
    return 0


def gather(work: Path, reasons: dict[Cell, str]) -> Certificates:
    """Returns the table of what is in the work folder.

    Args:
        work: The work folder.
        reasons: Why cells have no certificate, where that is known.
    """
    all_made: list[Made] = []
    absent: list[Missing] = []
    for cell in _in_order([*list_cells([]), *list_cells([], is_deep=True)]):
        made = read_cell(cell, work)
        if made is not None:
            all_made.append(made)
        elif not cell.is_deep:
            absent.append(missing(cell, reasons.get(cell, NOT_RUN)))
    return Certificates(
        command="python -m benchmarks.certificates",
        versions=describe_versions(all_made),
        machine=describe_machine(all_made),
        rows=tuple(make_row(made) for made in all_made),
        missing=tuple(absent),
    )


def _run(cells: list[Cell], work: Path, threads: int) -> dict[Cell, str]:
    """Makes what is missing; returns why some could not be made."""
    reasons = {}
    began = time.monotonic()
    for number, cell in enumerate(cells, start=1):
        try:
            made = run_cell(cell, work, threads=threads)
            (pair,) = made.certificate.pairs
            said = f"{pair.special_blocks.value}, {made.spent.seconds:,.0f} s"
        except (InputError, MissingLibraryError) as error:
            said = reasons[cell] = str(error)
        minutes = (time.monotonic() - began) / 60
        print(f"{number} of {len(cells)}, {minutes:.0f} min: {cell.command}: {said}", file=sys.stderr, flush=True)
    return reasons


def _in_order(cells: list[Cell]) -> list[Cell]:
    """Returns cells in the order of the table: the whole domain first, then backend by backend, deep ones last."""
    names = [cell.quantizer.partition(":")[0] for cell in cells]
    place = {name: at for at, name in enumerate(dict.fromkeys(names))}

    def key(cell: Cell) -> tuple[int, int, bool]:
        return -BOTH.index(cell.dtype), place[cell.quantizer.partition(":")[0]], cell.is_deep

    return sorted(cells, key=key)


if __name__ == "__main__":
    sys.exit(main())
