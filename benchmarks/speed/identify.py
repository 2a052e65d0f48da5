"""Time to identify one 4096 x 4096 matrix from its master, and to name or give up on a fault: the goal is 5 s each.

    python benchmarks/speed/identify.py [--threads N] [-o benchmarks/results/speed_identify.json]

Packed codes and fake-quantized numbers are tried, with bf16 masters. Every answer is checked before its time counts: a
quick wrong answer would be worth nothing. Stated before the first run of this file: codes 2 s, numbers 4 s. Faults go
through files and `identify`: scales of the transposed grid, swapped nibbles, codes of which three in ten are noise, and
codes of another matrix; the last two must end without a name. Stated before their first run: 5 s.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from quantaudit.core.cores import free_cores
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.identity.identify_paths import identify
from quantaudit.identity.mismatches.protocol import CONVINCING
from quantaudit.identity.search import search
from quantaudit.identity.search_sample import Served, served_codes, served_values
from quantaudit.numerics import dequantize, get_scheme, pack, quantize

SIZE = 4096
GOAL_SECONDS = 5.0
CODES = ("mxfp4-even", "mxfp4-rceil-zero", "int4-g32-div7.5", "fp8-block128")
NUMBERS = ("mxfp4-even", "int4-g32-div7", "fp8-channel")


FAULTS = {"transposed scales": "transposed-scales", "nibbles": "nibble-order", "noise": "", "another matrix": ""}


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


def write_fault(folder: Path, fault: str, master: torch.Tensor) -> Path:
    """Writes what is served of a master after a fault."""
    generator = torch.Generator().manual_seed(1)
    stored = quantize(master, get_scheme("mxfp4-even"))
    codes, scales = stored.codes, stored.scales
    noise = torch.randint(0, 16, codes.shape, generator=generator, dtype=torch.uint8)
    match fault:
        case "transposed scales":
            scales = scales.t().reshape(scales.shape).contiguous()
        case "nibbles":
            codes = codes.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        case "noise":
            codes = torch.where(torch.rand(codes.shape, generator=generator) < 0.3, noise, codes)
        case _:
            codes = noise
    packed = {"x.weight_packed": pack(codes, get_scheme("mxfp4-even").layout), "x.weight_scale": scales}
    save_file(packed, folder / "served.safetensors")
    return folder / "served.safetensors"


def measure_fault(folder: Path, fault: str, master: torch.Tensor, threads: int) -> Row:
    """Times `identify` on a fault and ends the run if another one, or one too many, is named."""
    served = write_fault(folder, fault, master)
    start = time.perf_counter()
    (tensor,) = identify(served, master=folder / "master.safetensors", threads=threads).tensors
    seconds = time.perf_counter() - start
    named = "" if tensor.mismatch is None or tensor.mismatch.explains < CONVINCING else tensor.mismatch.mismatch
    if named != FAULTS[fault]:
        raise SystemExit(f"{fault}: {named or 'nothing'} was named")
    print(f"{fault:20} as codes    {seconds:6.2f} s, {named or 'unexplained'}", flush=True)
    return Row(scheme=fault, served_as="codes", named=named, seconds=round(seconds, 3))


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
    with tempfile.TemporaryDirectory() as folder:
        save_file({"x.weight": master}, Path(folder) / "master.safetensors")
        rows += [measure_fault(Path(folder), fault, master, arguments.threads) for fault in FAULTS]
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
