"""Speed of rendering a stored report again, each format in a process of its own, and all at once.

    python benchmarks/speed/report.py [FILE] [--rounds 5] [-o reports/runs/speed_report.json]

Seconds are the least of the rounds: on the wall, and of the processor, which other work on the machine moves less. The
predictions below are printed before anything is timed. Importing torch would be a failure, and is checked.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.reporting import read_report

ROOT = Path(__file__).resolve().parents[2]
FORMATS = ("json", "md", "html", "junit", "sarif", "json,md,html,junit,sarif")

# Seconds of the processor, stated before the first run of this file: half a second of imports (pydantic and the types
# of core most of all), .1 s for the templates, and a few hundredths for each view.
PREDICTED = {"json": 0.5, "md": 0.6, "html": 0.7, "junit": 0.6, "sarif": 0.6, "json,md,html,junit,sarif": 0.8}
GOAL = 3.0  # seconds on the wall for all formats, on an idle core

PROGRAM = """
import sys
from quantaudit.cli.main import _run
code = _run(sys.argv[1:])
sys.exit(70 if "torch" in sys.modules else code)
"""


class Row(Frozen):
    """One choice of formats: least seconds, predicted processor seconds, and the bytes of all files."""

    formats: str
    wall_seconds: float
    cpu_seconds: float
    predicted_cpu_seconds: float
    num_bytes: int


class Results(Frozen):
    """A whole run with the report it rendered and the machine it ran on."""

    schema_version: int = 1
    report_digest: str
    report_bytes: int
    goal_wall_seconds: float
    rounds: int
    load: tuple[float, float, float]
    machine: str
    python: str
    rows: tuple[Row, ...]


class Spent(NamedTuple):
    """Seconds of one process."""

    wall: float
    cpu: float


def spend(file: Path, formats: str, folder: Path) -> Spent:
    """Renders once in a fresh process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-c", PROGRAM, "report", str(file), "--to", formats, "-o", str(folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Spent(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure(file: Path, formats: str, rounds: int) -> Row:
    """Returns the least seconds of several rounds."""
    with tempfile.TemporaryDirectory() as name:
        spent = [spend(file, formats, Path(name)) for _ in range(rounds)]
        num_bytes = sum(path.stat().st_size for path in Path(name).iterdir())
    return Row(
        formats=formats,
        wall_seconds=min(s.wall for s in spent),
        cpu_seconds=min(s.cpu for s in spent),
        predicted_cpu_seconds=PREDICTED[formats],
        num_bytes=num_bytes,
    )


def main() -> None:
    """Prints the predictions, measures, prints the rows, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=ROOT / "reports" / "embedded-k3-w4a8" / "report.json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "reports" / "runs" / "speed_report.json")
    arguments = parser.parse_args()
    digest = read_report(arguments.file).report_digest()
    for formats, seconds in PREDICTED.items():
        print(f"predicted {formats:<26} {seconds:.2f} s of the processor")
    rows = []
    for formats in FORMATS:
        rows.append(row := measure(arguments.file, formats, arguments.rounds))
        print(f"{formats:<36} {row.wall_seconds:.2f} s wall  {row.cpu_seconds:.2f} s cpu  {row.num_bytes:,} bytes")
    results = Results(
        report_digest=digest,
        report_bytes=arguments.file.stat().st_size,
        goal_wall_seconds=GOAL,
        rounds=arguments.rounds,
        load=os.getloadavg(),
        machine=f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        python=platform.python_version(),
        rows=tuple(rows),
    )
    write_atomically(arguments.output, results.to_json().encode())
    print(f"all formats in {rows[-1].wall_seconds:.2f} s, goal {GOAL} s; written to {arguments.output}")


if __name__ == "__main__":
    main()
