"""Speed of a complete certificate: compiled code against its reference, and libraries against the time they need.

    python benchmarks/speed/certify.py [--threads 2] [--library torchao:mxfp4-even] [-o reports/runs/speed_certify.json]

`--library` may be repeated; without it three libraries are measured.

The predictions below are printed before anything is timed. Compiling is timed apart: it happens once for a machine.
What a library needs itself is measured in the same run, block by block in turn with the certificate, on the same values
without the statistics that the certificate adds to every group, and without reference and comparison.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from itertools import islice
from pathlib import Path

import torch

from quantaudit.core.certificate import BlockKind
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.identity.arrangement import group_size
from quantaudit.identity.differences import Tallies
from quantaudit.identity.domain import BF16_INPUT, ladder_blocks
from quantaudit.identity.enumeration import enumerate_blocks
from quantaudit.identity.findings import start_counting
from quantaudit.identity.observe import ladder_multiple, lay_out, run_groups
from quantaudit.identity.sides import Side, open_sides

ROOT = Path(__file__).resolve().parents[2]
ALL_PAIRS = BF16_INPUT.num_ranks * (BF16_INPUT.num_ranks + 1)

# Stated before the first run of this file. Compiled code needs 2.5 ns of a core for a value of bf16, stairs and their
# copies 1 ns, making groups and comparing another 1.5: 5 ns times 1.065e9 is 5.5 s of one core, 3 to 4 s of two.
PREDICTED_SECONDS = 4.0
GOAL_SECONDS = 10.0
# A library needs 40 to 100 ns a value; what is added is some 3 ns, and a group in 32 for the statistic.
PREDICTED_RATIO = 1.1
# Found since, by parts, in ns of a core for a value: laying out .5, taking values out of groups .5, stairs and their
# copies .7, comparing .7. That is the same for every library, so a quick one (nf4 needs 13) has the larger ratio.
GOAL_RATIO = 1.3
LIBRARIES = ("torchao:mxfp4-even", "compressed-tensors:int4-g32", "bitsandbytes:nf4")


class LibraryResult(Frozen):
    """What a certificate costs beside the library alone; seconds on the wall and of the processor."""

    name: str
    num_pairs: int
    seconds: float
    cpu_seconds: float
    certificate_seconds: float
    certificate_cpu_seconds: float
    ratio_wall: float
    ratio_cpu: float


class Results(Frozen):
    """The certificate of compiled code, and the ratios of libraries; seconds on the wall and of the processor."""

    schema_version: int = 2
    scheme: str
    compile_seconds: float
    num_pairs: int
    num_differing: int
    wall_seconds: float
    cpu_seconds: float
    goal_seconds: float
    libraries: tuple[LibraryResult, ...]
    goal_ratio: float
    threads: int
    load: tuple[float, float, float]
    machine: str
    torch_version: str


class Timer:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Returns seconds on the wall and of the processor."""
        return time.perf_counter() - self._wall, time.process_time() - self._cpu


def compile_first(side: Side) -> float:
    """Runs a side once for each dtype of layout it will meet; returns the seconds."""
    timer = Timer()
    for block in islice(ladder_blocks(BF16_INPUT, multiple=ladder_multiple(side.scheme)), 2):
        laid_out = lay_out(block, side.scheme, is_statistic_first=True)
        run_groups(side, laid_out.groups_GN, side.scheme, torch.bfloat16)
    return timer.read()[0]


def certify_blocks(sides: tuple[Side, Side], count: int | None) -> Tallies:
    """Compares two sides on the first blocks, or on all."""
    tallies = start_counting(sides)
    blocks = islice(ladder_blocks(BF16_INPUT, multiple=ladder_multiple(sides[0].scheme)), count)
    enumerate_blocks(sides, blocks, ALL_PAIRS, tallies, torch.bfloat16, lambda stage, done, total: None)
    return tallies


def compare_in_turn(sides: tuple[Side, Side], count: int) -> tuple[tuple[float, float], tuple[float, float], Tallies]:
    """Runs the first side alone and then certifies, block by block; returns both times and the counts."""
    alone, certified, tallies = (0.0, 0.0), (0.0, 0.0), start_counting(sides)
    for number, block in enumerate(islice(ladder_blocks(BF16_INPUT, multiple=ladder_multiple(sides[0].scheme)), count)):
        laid_out = lay_out(block, sides[0].scheme, is_statistic_first=number % 2 == 0)
        size = group_size(sides[0].scheme.granularity) or laid_out.groups_GN.shape[1]
        # A group in `size` less: the library alone gets the values and no statistics.
        groups_GN = laid_out.groups_GN[: max(1, len(laid_out.groups_GN) * (size - 1) // size)]
        timer = Timer()
        run_groups(sides[0], groups_GN, sides[0].scheme, torch.bfloat16)
        alone = add(alone, timer.read())
        timer = Timer()
        enumerate_blocks(sides, [block], ALL_PAIRS, tallies, torch.bfloat16, lambda stage, done, total: None)
        certified = add(certified, timer.read())
    return alone, certified, tallies


def add(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    """Returns the sums."""
    return a[0] + b[0], a[1] + b[1]


def num_pairs(tallies: Tallies) -> int:
    """Returns how many pairs were compared."""
    return sum(tally.num_pairs for tally in tallies.by_kind.values())


def measure_library(name: str, num_blocks: int) -> LibraryResult:
    """Measures a library alone and its certificate, in turn, after a warm-up of two blocks."""
    pair = open_sides(name, open_sides(name, name)[0].scheme.name)
    compare_in_turn(pair, 2)
    alone, both, compared = compare_in_turn(pair, num_blocks)
    return LibraryResult(
        name=name,
        num_pairs=num_pairs(compared),
        seconds=alone[0],
        cpu_seconds=alone[1],
        certificate_seconds=both[0],
        certificate_cpu_seconds=both[1],
        ratio_wall=both[0] / alone[0],
        ratio_cpu=both[1] / alone[1],
    )


def measure(scheme: str, libraries: tuple[str, ...], threads: int, num_blocks: int, num_fused: int | None) -> Results:
    """Measures both goals, the second on some blocks of about a million pairs, the first on all or on some."""
    fused = open_sides(f"fused:{scheme}", scheme)
    compile_seconds = compile_first(fused[0])
    timer = Timer()
    tallies = certify_blocks(fused, num_fused)
    wall, cpu = timer.read()
    return Results(
        scheme=scheme,
        compile_seconds=compile_seconds,
        num_pairs=num_pairs(tallies),
        num_differing=sum(tallies.of(kind).values for kind in BlockKind),
        wall_seconds=wall,
        cpu_seconds=cpu,
        goal_seconds=GOAL_SECONDS,
        libraries=tuple(measure_library(name, num_blocks) for name in libraries),
        goal_ratio=GOAL_RATIO,
        threads=threads,
        load=os.getloadavg(),
        machine=f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        torch_version=torch.__version__,
    )


def main() -> None:
    """Prints the predictions, measures, prints the results, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheme", default="mxfp4-even")
    parser.add_argument("--library", action="append", help="backend:scheme (repeat; default: three)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=60, help="of about a million pairs, for each library")
    parser.add_argument("--fused-blocks", type=int, help="of about a million pairs, for compiled code; all if left out")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "reports" / "runs" / "speed_certify.json")
    arguments = parser.parse_args()
    print(f"predicted {PREDICTED_SECONDS} s for all {ALL_PAIRS:,} pairs of compiled code on two idle cores")
    print(f"predicted {PREDICTED_RATIO} x the library's own time")
    torch.set_num_threads(arguments.threads)
    libraries = tuple(arguments.library or LIBRARIES)
    found = measure(arguments.scheme, libraries, arguments.threads, arguments.blocks, arguments.fused_blocks)
    write_atomically(arguments.output, found.to_json().encode())
    print(f"compiling took {found.compile_seconds:.1f} s")
    print(
        f"{found.num_pairs:,} pairs, {found.num_differing:,} differ: {found.wall_seconds:.1f} s wall,"
        f" {found.cpu_seconds:.1f} s cpu, goal {GOAL_SECONDS:.0f} s"
    )
    for one in found.libraries:
        print(
            f"{one.name}: {one.ratio_wall:.2f} x its own time on the wall, {one.ratio_cpu:.2f} x of the processor,"
            f" goal {GOAL_RATIO}"
        )
    print(f"load {found.load[0]:.1f}; written to {arguments.output}")


if __name__ == "__main__":
    main()
