"""Time to identify one 4096 x 4096 matrix from its master: the goal is 5 s on two cores.

    python benchmarks/speed/identify.py [--threads N] [-o benchmarks/results/speed_identify.json]

Packed codes and fake-quantized numbers are tried, with bf16 masters. Every answer is checked before its time counts: a
quick wrong answer would be worth nothing. Stated before the first run of this file: codes 2 s, numbers 4 s.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path

import torch

from quantaudit.core.cores import free_cores
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.identity.search import search
from quantaudit.identity.search_sample import Served, served_codes, served_values
from quantaudit.numerics import dequantize, get_scheme, quantize

SIZE = 4096
GOAL_SECONDS = 5.0
CODES = ("mxfp4-even", "mxfp4-rceil-zero", "int4-g32-div7.5", "fp8-block128")
NUMBERS = ("mxfp4-even", "int4-g32-div7", "fp8-channel")


class Row(Frozen):
    """One matrix: what made it, how it was served, what was named, and the seconds that took."""

    scheme: str
    served_as: str
    named: str
    seconds: float
    goal: float = GOAL_SECONDS


class Results(Frozen):
    """A whole run with the machine it ran on."""

    schema_version: int = 1
    shape: tuple[int, int] = (SIZE, SIZE)
    dtype: str = "bfloat16"
    threads: int
    load: tuple[float, float, float]
    machine: str
    torch_version: str
    rows: tuple[Row, ...]


def measure(master: torch.Tensor, name: str, served_as: str, served: Served) -> Row:
    """Times one search and ends the run if its answer is wrong."""
    start = time.perf_counter()
    found = search(master, served)
    seconds = time.perf_counter() - start
    if found is None or found.misses.values or found.scheme.name != name:
        raise SystemExit(f"{name} as {served_as}: {'nothing' if found is None else found.scheme.name} was named")
    print(f"{name:20} as {served_as:8} {seconds:6.2f} s", flush=True)
    return Row(scheme=name, served_as=served_as, named=found.scheme.name, seconds=round(seconds, 3))


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=free_cores())
    parser.add_argument("-o", type=Path, default=Path("benchmarks/results/speed_identify.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    generator = torch.Generator().manual_seed(0)
    master = torch.randn(SIZE, SIZE, generator=generator) * torch.randn(SIZE, 1, generator=generator).exp()
    master = master.to(torch.bfloat16)
    load = os.getloadavg()
    rows = [measure(master, name, "codes", served_codes(quantize(master, get_scheme(name)))) for name in CODES]
    rows += [
        measure(master, name, "numbers", served_values(dequantize(quantize(master, get_scheme(name)))))
        for name in NUMBERS
    ]
    results = Results(
        threads=arguments.threads,
        load=load,
        machine=platform.processor() or platform.machine(),
        torch_version=torch.__version__,
        rows=tuple(rows),
    )
    write_atomically(arguments.o, results.to_json().encode())


if __name__ == "__main__":
    main()
