"""`python -m benchmarks.calibration`: simulates the grid and writes the table as JSON, markdown and HTML."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

from benchmarks.calibration.grid import SEED, carry_out, tasks
from benchmarks.calibration.table import Calibration, Cell, RuleName, summarize
from benchmarks.calibration.write import write
from quantaudit.stats.clustered import ALPHA

REPLICATES = 4000
REPORTS = Path(__file__).parents[2] / "reports"
LIBRARIES = ("quantaudit", "numpy", "scipy")


def simulate(replicates: int, rules: tuple[RuleName, ...] = tuple(RuleName)) -> tuple[Cell, ...]:
    """Simulates the cells of some rules, and says on stderr how far it is."""
    chosen = [task for task in tasks() if task.rule in rules]
    cells: list[Cell] = []
    started = time.monotonic()
    for done, task in enumerate(chosen, start=1):
        cells += carry_out(task, replicates)
        if done % 50 == 0 or done == len(chosen):
            seconds = time.monotonic() - started
            print(f"{done:,} of {len(chosen):,} simulations, {seconds:.0f} s: {task.rule.value}", file=sys.stderr)
    return tuple(cells)


def main(arguments: list[str] | None = None) -> int:
    """Runs the grid; returns 0 if every cell keeps its promise, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration", description=__doc__)
    parser.add_argument("--replicates", type=int, default=REPLICATES, help="samples a cell (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=REPORTS, help="folder for the three files (default: reports)")
    parser.add_argument("--rule", action="append", choices=[r.value for r in RuleName], help="this rule only (repeat)")
    given = parser.parse_args(arguments)
    if given.replicates < 2:
        parser.error(f"--replicates {given.replicates}: at least 2 samples a cell are needed")
    rules = tuple(RuleName(name) for name in given.rule) if given.rule else tuple(RuleName)
    only = "".join(f' --rule "{rule.value}"' for rule in rules) if given.rule else ""
    table = Calibration(
        command=f"python -m benchmarks.calibration --replicates {given.replicates}{only}",
        seed=SEED,
        replicates=given.replicates,
        versions={"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        alpha=ALPHA,
        cells=simulate(given.replicates, rules),
    )
    for path in write(table, given.output):
        print(path)
    print(summarize(table))
    return 1 if table.too_liberal() else 0


if __name__ == "__main__":
    sys.exit(main())
