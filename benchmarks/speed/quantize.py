"""Speed of fake quantization against an in-place copy of the same tensor: ratios of minima, interleaved, in one run.

    python benchmarks/speed/quantize.py [--threads 2] [--rounds 30] [-o reports/runs/speed_quantize.json]

Every round times the copy and every scheme once, so that whatever else the machine does hits all alike; the minimum
over the rounds is compared. Before anything is timed the predictions below are printed, and each result is compared bit
for bit with the reference, on the timed matrix and, in fp32 and bf16, on what random data hides: ties, zeros of both
signs, subnormals, saturating and overflowing groups, NaN, infinity, and blocks cut off at the edges. Schemes without
compiled code are timed in fewer rounds, through the reference.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from quantaudit.core.format import IntegerFormat, code_values
from quantaudit.core.scheme import PerBlock, Scheme
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.numerics import fake_quantize, fused_fake_quantize, fused_status, get_scheme, scheme_names
from quantaudit.numerics.twins import has_twin

SIZE = 4096
REFERENCE_ROUNDS = 3

# Ratio to the copy (larger is faster), stated before the first run of this file. A copy moves 8 bytes a value; a twin
# moves the same when a piece stays in cache between its two passes, and spends about .2 ns a value and core on the
# maximum and .15 to .2 on rounding, which two cores hide behind memory only in part.
PREDICTED = {
    "mxfp4-even": 0.7,
    "mxfp4-floor": 0.7,
    "mxfp4-rceil": 0.7,
    "int4-g32-div7": 0.7,
    "int4-g128-div7.5": 0.8,
    "mxfp8-e4m3-floor": 0.7,
    "mxfp8-e4m3-rceil": 0.7,
    "mxfp8-e4m3-even": 0.7,
    "mxfp8-e4m3-ceil": 0.7,
    "mxfp8-e4m3-even-e2m1": 0.7,
    "fp8-block128": 0.7,
    "fp8-block128-ue8m0": 0.7,
    "fp8-channel": 0.7,
    "fp8-channel-ue8m0": 0.7,
    "int8-channel": 0.75,
}
GOALS = {"mxfp4": 0.6, "int4-g32": 0.6, "mxfp8-e4m3": 0.3, "fp8-channel": 0.3, "fp8-block128": 0.3}


class Row(Frozen):
    """One scheme: how it ran, its least time, and its speed as a fraction of the copy's."""

    scheme: str
    path: str
    rounds: int
    seconds: float
    ratio: float
    predicted: float | None
    goal: float | None


class Results(Frozen):
    """A whole run with the machine it ran on."""

    schema_version: int = 1
    shape: tuple[int, int]
    dtype: str
    threads: int
    load: tuple[float, float, float]
    machine: str
    torch_version: str
    status: str
    copy_seconds: float
    rows: tuple[Row, ...]


def seconds_of(action: Callable[[], object]) -> float:
    """Returns the wall time of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure(x: Tensor, names: list[str], rounds: int) -> tuple[float, dict[str, float]]:
    """Returns the least time of the copy, and of every scheme into one reused buffer."""
    out, copied = torch.zeros_like(x), torch.zeros_like(x)
    schemes = {name: get_scheme(name) for name in names}
    for scheme in schemes.values():
        check_bits({"timed": x}, scheme, (torch.float32,))
        check_bits(hard_matrices(scheme), scheme, (torch.float32, torch.bfloat16))
    least = {name: float("inf") for name in names}
    copy = float("inf")
    for _ in range(rounds):
        copy = min(copy, seconds_of(lambda: copied.copy_(x)))
        for name, scheme in schemes.items():
            action = partial(fused_fake_quantize, x, scheme, out, compile_after=0)
            least[name] = min(least[name], seconds_of(action))
    return copy, least


def check_bits(matrices: dict[str, Tensor], scheme: Scheme, dtypes: tuple[torch.dtype, ...]) -> None:
    """Ends the run if fused and reference quantization differ in a bit of a matrix; every NaN counts as one number."""
    for dtype in dtypes:
        for what, matrix in matrices.items():
            values = matrix.to(dtype).contiguous()
            actual, expected = fused_fake_quantize(values, scheme, compile_after=0), fake_quantize(values, scheme)
            num_different = int((bits_of(actual) != bits_of(expected)).sum())
            if num_different:
                raise SystemExit(
                    f"{scheme.name}: {num_different} values of the matrix {what!r} in {dtype} differ from the reference"
                )


def bits_of(values: Tensor) -> Tensor:
    """Returns the bits as int32, one pattern for every NaN; zeros keep their sign."""
    wide = values.float()
    return torch.where(wide.isnan(), torch.nan, wide).view(torch.int32)


def hard_matrices(scheme: Scheme) -> dict[str, Tensor]:
    """Returns fp32 matrices by what is hard about them: [256, 256], and for blocks one with partial ones."""
    every_bf16 = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float().view(256, 256)
    element = scheme.element
    values = range(8) if isinstance(element, IntegerFormat) else code_values(element)
    steps = torch.tensor(sorted({abs(float(v)) for v in values if math.isfinite(v)}))
    ties = torch.cat([steps, (steps[1:] + steps[:-1]) / 2, torch.nextafter(steps, steps + 1)])
    row = ties.repeat(-(-256 // len(ties)))[:256] * torch.tensor([1.0, -1.0]).repeat(128)
    row[::16] = steps[-1]  # the statistic of every group, so that the scale is a power of two and ties stay ties
    scaled = row * torch.exp2(torch.arange(-149, 107).float()).unsqueeze(1)
    zeros = torch.zeros(256, 256)
    zeros[1::2] = -0.0
    zeros[::5, 40::64] = 1.0
    matrices = {"every bf16 number": every_bf16, "values, ties and their neighbours": scaled, "zeros": zeros}
    if isinstance(scheme.granularity, PerBlock):
        matrices["partial blocks"] = scaled.repeat(1, 2)[:200, :300]
    return matrices


def goal_of(name: str) -> float | None:
    """Returns the least acceptable ratio, if one is set."""
    return next((goal for stem, goal in GOALS.items() if name.startswith(stem)), None)


def run(threads: int, rounds: int) -> Results:
    """Measures the compiled schemes, then a few through the reference."""
    torch.set_num_threads(threads)
    x = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    covered = [name for name in PREDICTED if has_twin(get_scheme(name))]
    rest = ["nvfp4", "nf4-b64", "fp4-b64-double", "gguf-q4_0", "fp8-tensor", "fp8-tensor-ue8m0", "mxfp4-even-away"]
    assert set(rest) <= set(scheme_names())
    copy, least = measure(x, covered, rounds)
    slow_copy, slow = measure(x, rest, REFERENCE_ROUNDS)
    copy = min(copy, slow_copy)
    timed = [(name, "compiled", rounds, least[name]) for name in covered]
    timed += [(name, "reference", REFERENCE_ROUNDS, slow[name]) for name in rest]
    rows = tuple(
        Row(
            scheme=name,
            path=path,
            rounds=count,
            seconds=seconds,
            ratio=copy / seconds,
            predicted=PREDICTED.get(name),
            goal=goal_of(name) if path == "compiled" else None,
        )
        for name, path, count, seconds in timed
    )
    return Results(
        shape=(SIZE, SIZE),
        dtype="float32",
        threads=threads,
        load=os.getloadavg(),
        machine=f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        torch_version=torch.__version__,
        status=fused_status(),
        copy_seconds=copy,
        rows=rows,
    )


def main() -> None:
    """Prints predictions, measures, prints a table and writes it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("-o", "--output", type=Path, default=Path("reports/runs/speed_quantize.json"))
    given = parser.parse_args()
    if given.rounds < 20:
        parser.error("a minimum is taken of at least 20 rounds")
    print("predicted ratios:", ", ".join(f"{name} {ratio}" for name, ratio in PREDICTED.items()))
    results = run(given.threads, given.rounds)
    print(f"{results.status}\ncopy {results.copy_seconds * 1e3:.2f} ms, load {results.load[0]:.1f}")
    for row in results.rows:
        goal = "" if row.goal is None else f"  goal {row.goal} {'met' if row.ratio >= row.goal else 'MISSED'}"
        print(f"{row.scheme:20} {row.path:10} {row.seconds * 1e3:8.2f} ms  {row.ratio:.3f} of the copy{goal}")
    write_atomically(given.output, results.to_json().encode())
    print(f"written to {given.output}")


if __name__ == "__main__":
    main()
