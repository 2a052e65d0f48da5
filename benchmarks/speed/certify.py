"""Speed of a complete certificate: compiled code against its reference, and libraries against the time they need.

    python benchmarks/speed/certify.py [--threads 2] [--library torchao:mxfp4-even] [-o reports/runs/speed_certify.json]

`--library` may be repeated; without it all three are measured.

The predictions below are printed before anything is timed. Compiling is timed apart: it happens once for a machine.
What a library needs itself is its own calls and nothing of this package, on the same values without the statistics that
the certificate adds to every group. It is measured in the same run, block by block in turn with the certificate, every
block several times; minima are added up.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

import bitsandbytes.functional as bnb
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams
from torch import Tensor
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import to_dtype, to_mx

from quantaudit.core.certificate import BlockKind
from quantaudit.core.heap import keep_freed_memory
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.identity.arrangement import group_size
from quantaudit.identity.differences import Tallies
from quantaudit.identity.domain import BF16_INPUT, ladder_blocks
from quantaudit.identity.enumeration import enumerate_blocks
from quantaudit.identity.findings import start_counting
from quantaudit.identity.laying import ladder_multiple, lay_out
from quantaudit.identity.observe import run_groups
from quantaudit.identity.sides import Side, open_sides

ROOT = Path(__file__).resolve().parents[2]
ALL_PAIRS = BF16_INPUT.num_ranks * (BF16_INPUT.num_ranks + 1)

# Stated before the first run of this file. Compiled code needs 2.5 ns of a core for a value of bf16, stairs and their
# copies 1 ns, making groups and comparing another 1.5: 5 ns times 1.065e9 is 5.5 s of one core, 3 to 4 s of two.
PREDICTED_SECONDS = 4.0
GOAL_SECONDS = 10.0
# A library needs 40 to 100 ns a value; what is added is some 3 ns, and a group in 32 for the statistic.
PREDICTED_RATIO = 1.1
# Found since: what is added is the same for every library, so a quick one has the larger ratio.
GOAL_RATIO = 1.3
MX_GROUP, ROW_GROUPS = 32, 16
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

    schema_version: int = 3
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
    rounds: int
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


def quantize_by_torchao(weight: Tensor) -> object:
    """MXFP4 in the mode `even`, and back."""
    scales, data = to_mx(weight, torch.float4_e2m1fn_x2, MX_GROUP, ScaleCalculationMode.EVEN)
    return to_dtype(data, scales, torch.float4_e2m1fn_x2, MX_GROUP, weight.dtype)


def quantize_by_compressed_tensors(weight: Tensor) -> object:
    """INT4 in groups of 32, packed, and back."""
    preset = preset_name_to_scheme("W4A16", ["Linear"])
    preset.weights.group_size = MX_GROUP
    groups = weight.view(weight.shape[0], -1, MX_GROUP)
    scale, zero_point = calculate_qparams(groups.amin(-1), groups.amax(-1), preset.weights, None)
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero_point}
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    return compressor.decompress(compressor.compress(state, preset), preset)


def quantize_by_bitsandbytes(weight: Tensor) -> object:
    """NF4 in blocks of 64, and back."""
    packed, state = bnb.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    return bnb.dequantize_4bit(packed, state)


OWN_CALLS: dict[str, Callable[[Tensor], object]] = {
    "torchao:mxfp4-even": quantize_by_torchao,
    "compressed-tensors:int4-g32": quantize_by_compressed_tensors,
    "bitsandbytes:nf4": quantize_by_bitsandbytes,
}


class Least:
    """The least wall time of several, and the least processor time."""

    def __init__(self) -> None:
        self.wall, self.cpu = math.inf, math.inf

    def time(self, action: Callable[[], object]) -> None:
        """Times one call more."""
        timer = Timer()
        action()
        wall, cpu = timer.read()
        self.wall, self.cpu = min(self.wall, wall), min(self.cpu, cpu)


def compare_in_turn(
    sides: tuple[Side, Side], count: int, rounds: int
) -> tuple[tuple[float, float], tuple[float, float], Tallies]:
    """Runs the library alone and then certifies, block by block; returns both times and the counts."""
    alone, certified, tallies = (0.0, 0.0), (0.0, 0.0), start_counting(sides)
    own, scheme = OWN_CALLS[sides[0].name], sides[0].scheme
    size = group_size(scheme.granularity)
    assert size is not None
    for number, block in enumerate(islice(ladder_blocks(BF16_INPUT, multiple=ladder_multiple(scheme)), count)):
        groups_GN = lay_out(block, scheme, is_statistic_first=number % 2 == 0).groups_GN
        # A group in `size` less: the library alone gets the values and no statistics.
        groups_GN = groups_GN[: len(groups_GN) * (size - 1) // size // ROW_GROUPS * ROW_GROUPS]
        weight = groups_GN.reshape(-1, ROW_GROUPS * size)
        library, certificate = Least(), Least()
        counts = [start_counting(sides) for _ in range(rounds - 1)] + [tallies]
        for counted in counts:
            library.time(partial(own, weight))
            certificate.time(
                partial(enumerate_blocks, sides, [block], ALL_PAIRS, counted, torch.bfloat16, lambda *_: None)
            )
        alone = add(alone, (library.wall, library.cpu))
        certified = add(certified, (certificate.wall, certificate.cpu))
    return alone, certified, tallies


def add(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    """Returns the sums."""
    return a[0] + b[0], a[1] + b[1]


def num_pairs(tallies: Tallies) -> int:
    """Returns how many pairs were compared."""
    return sum(tally.num_pairs for tally in tallies.by_kind.values())


def measure_library(name: str, num_blocks: int, rounds: int) -> LibraryResult:
    """Measures a library alone and its certificate, in turn, after a warm-up of two blocks."""
    pair = open_sides(name, open_sides(name, name)[0].scheme.name)
    compare_in_turn(pair, 2, 1)
    alone, both, compared = compare_in_turn(pair, num_blocks, rounds)
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


def measure(
    scheme: str, libraries: tuple[str, ...], threads: int, num_blocks: int, rounds: int, num_fused: int | None
) -> Results:
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
        libraries=tuple(measure_library(name, num_blocks, rounds) for name in libraries),
        goal_ratio=GOAL_RATIO,
        threads=threads,
        rounds=rounds,
        load=os.getloadavg(),
        machine=f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        torch_version=torch.__version__,
    )


def main() -> None:
    """Prints the predictions, measures, prints the results, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheme", default="mxfp4-even")
    parser.add_argument("--library", action="append", choices=LIBRARIES, help="one of three (repeat; default: all)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=60, help="of about a million pairs, for each library")
    parser.add_argument("--rounds", type=int, default=3, help="of every block, for each library")
    parser.add_argument("--fused-blocks", type=int, help="of about a million pairs, for compiled code; all if left out")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "reports" / "runs" / "speed_certify.json")
    arguments = parser.parse_args()
    print(f"predicted {PREDICTED_SECONDS} s for all {ALL_PAIRS:,} pairs of compiled code on two idle cores")
    print(f"predicted {PREDICTED_RATIO} x the library's own time")
    keep_freed_memory()  # as the command does
    torch.set_num_threads(arguments.threads)
    libraries = tuple(arguments.library or LIBRARIES)
    found = measure(
        arguments.scheme, libraries, arguments.threads, arguments.blocks, arguments.rounds, arguments.fused_blocks
    )
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
