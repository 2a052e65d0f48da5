"""`python -m benchmarks.sensitivity`: plants every mismatch and writes the table as JSON, markdown and HTML."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import torch

from benchmarks.sensitivity.grid import SEED
from benchmarks.sensitivity.power import FALSE_ALARMS, TOKENS, measure_power
from benchmarks.sensitivity.table import Sensitivity, summarize
from benchmarks.sensitivity.trials import count_clean, count_delays, count_injection
from benchmarks.sensitivity.write import write
from quantaudit.training.checking.injections.registry import list_injections

RUNS, CLEAN_STEPS, SEQUENCES = 20, 1000, 512
REPORTS = Path(__file__).parents[2] / "reports"
LIBRARIES = ("quantaudit", "torch")
_T = TypeVar("_T")


def _told(rows: Iterable[_T]) -> tuple[_T, ...]:
    """Returns the rows, and says each on stderr when it is there."""
    found = []
    for row in rows:
        print(row, file=sys.stderr)
        found.append(row)
    return tuple(found)


def main(arguments: list[str] | None = None) -> int:
    """Runs everything; returns 0 if every mismatch is found at its step and named, without false alarms, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sensitivity", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="runs a mismatch (default: %(default)s)")
    parser.add_argument("--clean-steps", type=int, default=CLEAN_STEPS, help="clean steps (default: %(default)s)")
    parser.add_argument("--sequences", type=int, default=SEQUENCES, help="sequences a power row (default: %(default)s)")
    parser.add_argument("--only", action="append", help="this mismatch only (repeat)")
    parser.add_argument("--output", type=Path, default=REPORTS, help="folder for the three files (default: reports)")
    given = parser.parse_args(arguments)
    if min(given.runs, given.clean_steps) < 1 or given.sequences < 16:
        parser.error("at least one run, one clean step and sixteen sequences are needed")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    names = given.only or [about.name for about in list_injections()]
    only = "".join(f" --only {name}" for name in given.only or ())
    started = time.process_time()
    table = Sensitivity(
        command=f"python -m benchmarks.sensitivity --runs {given.runs} --clean-steps {given.clean_steps}{only}",
        seed=SEED,
        versions={"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        injections=_told(count_injection(name, given.runs) for name in names),
        clean=_told(count_clean(given.clean_steps)),
        delays=_told(count_delays(given.runs)),
        tokens=TOKENS,
        false_alarms=FALSE_ALARMS,
        power=_told(measure_power(given.sequences)),
        seconds=round(time.process_time() - started, 1),
    )
    for path in write(table, given.output):
        print(path)
    print(summarize(table))
    return 0 if table.keeps_its_promise() else 1


if __name__ == "__main__":
    sys.exit(main())
