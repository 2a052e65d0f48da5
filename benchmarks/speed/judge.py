"""Speed of the verdict on recorded results: `quantaudit judge` on two files and a floor, each time in a fresh process.

    python benchmarks/speed/judge.py [--items 2000] [--rounds 5] [-o reports/runs/speed_judge.json]

The files are made by a seeded program: items of four families with correctness, likelihood and margin, some of which
lo answers otherwise. Seconds are the least of the rounds: on the wall, and of the processor, which other work on the
machine moves less. The work inside the process is given apart from starting Python and importing. Predictions are
printed before anything is timed. Importing torch would be a failure, and is checked.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from quantaudit.core.serial import Frozen, write_atomically

ROOT = Path(__file__).resolve().parents[2]
PREDICTED_CPU, PREDICTED_INSIDE = 1.2, 0.4  # scipy's import is most of what is not inside
GOAL = 1.0  # seconds of the verdict itself, reports not written
FAMILIES = ("sums", "words", "facts", "code")

PROGRAM = """
import sys, time
import quantaudit
judge = quantaudit.judge
from quantaudit.evaluation.recorded.request import judge_files
began = time.perf_counter()
report = judge(sys.argv[1], sys.argv[2], floor=sys.argv[3])
print(time.perf_counter() - began)
sys.exit(70 if "torch" in sys.modules else 0)
"""


class Results(Frozen):
    """A whole run with the machine it ran on.

    Attributes:
        inside_seconds: Least wall time of reading, pairing and deciding.
        wall_seconds: Least wall time of the process.
        cpu_seconds: Least processor time of the process.
    """

    schema_version: int = 1
    num_items: int
    rounds: int
    predicted_inside_seconds: float
    predicted_cpu_seconds: float
    goal_inside_seconds: float
    inside_seconds: float
    wall_seconds: float
    cpu_seconds: float
    load: tuple[float, float, float]
    machine: str
    python: str


class Spent(NamedTuple):
    """Seconds of one process, and of the verdict inside it."""

    inside: float
    wall: float
    cpu: float


def write_items(folder: Path, num_items: int) -> list[Path]:
    """Writes hi, lo and hi again as plain JSONL."""
    rng = random.Random(0)
    sides: dict[str, list[str]] = {"hi": [], "lo": [], "again": []}
    for number in range(num_items):
        right, nll, margin = rng.random() < 0.8, rng.gauss(0.5, 0.1), rng.gauss(3.0, 0.5)
        for side, lines in sides.items():
            flips = side == "lo" and rng.random() < 0.01
            shift = rng.gauss(0, 0.01) if side == "lo" else 0.0
            row = {
                "id": f"q{number}",
                "family": FAMILIES[number % len(FAMILIES)],
                "cluster": f"c{number // 4}",
                "correct": int(right != flips),
                "nll": nll + shift,
                "margin": margin - shift,
            }
            lines.append(json.dumps(row))
    paths = []
    for side, lines in sides.items():
        paths.append(path := folder / f"{side}.jsonl")
        path.write_text("\n".join(lines) + "\n", "utf-8")
    return paths


def spend(files: list[Path]) -> Spent:
    """Judges once in a fresh process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-c", PROGRAM, *map(str, files)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=True, env=env, capture_output=True, text=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(float(done.stdout), wall, cpu)


def main() -> None:
    """Prints the predictions, measures, prints the figures and writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "reports" / "runs" / "speed_judge.json")
    given = parser.parse_args()
    print(f"predicted: {PREDICTED_INSIDE:g} s for the verdict, {PREDICTED_CPU:g} s of the processor in all", flush=True)
    with tempfile.TemporaryDirectory() as name:
        files = write_items(Path(name), given.items)
        spent = [spend(files) for _ in range(given.rounds)]
    results = Results(
        num_items=given.items,
        rounds=given.rounds,
        predicted_inside_seconds=PREDICTED_INSIDE,
        predicted_cpu_seconds=PREDICTED_CPU,
        goal_inside_seconds=GOAL,
        inside_seconds=min(s.inside for s in spent),
        wall_seconds=min(s.wall for s in spent),
        cpu_seconds=min(s.cpu for s in spent),
        load=os.getloadavg(),
        machine=f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        python=platform.python_version(),
    )
    write_atomically(given.output, results.to_json().encode())
    print(
        f"{results.num_items:,} items: {results.inside_seconds:.2f} s for the verdict (goal {GOAL:g}), the process "
        f"{results.wall_seconds:.2f} s on the wall and {results.cpu_seconds:.2f} s of the processor, least of "
        f"{results.rounds}, load {results.load[0]:.1f}"
    )


if __name__ == "__main__":
    main()
