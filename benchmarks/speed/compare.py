"""Speed of `compare` against reading and digesting the same files: it should be bounded by the slower of the two.

    python benchmarks/speed/compare.py [--threads 1] [--rounds 3] [-o benchmarks/results/speed_compare.json]

From the page cache, two experts of MXFP4, 4096 x 4096, against: equal bytes, one expert of which a few codes differ,
other scales everywhere, swapped nibbles (named, and counted on every value), and fake-quantized bf16 of equal values
and of other scales; and, under other scales, 64 experts of 1024 x 2048 and 384 of 256 x 1024. `read` touches every byte
of both files, `digest` takes both manifests as a new process does: eagerly, at this size. Both are measured on the
files of every pair. A round times everything once; minima are compared. Every answer is checked before anything is
timed.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from quantaudit.core.comparison import TensorClass
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.identity.compare_paths import compare
from quantaudit.identity.fingerprint_compiled import forget_words
from quantaudit.identity.fingerprint_path import fingerprint
from quantaudit.numerics import dequantize, get_scheme, pack, quantize

SHAPE, EXPERTS = (4096, 4096), 2
MANY = {64: (1024, 2048), 384: (256, 1024)}  # shapes of that many experts
OFFSET = "exponent-offset"
GOAL = 1.0  # of the slower of reading and digesting


class Pair(NamedTuple):
    """Two checkpoints, the class that their experts must come to, their shape, and the mismatch that must be named."""

    first: Path
    second: Path
    expected: TensorClass
    shape: tuple[int, int, int]
    mismatch: str = ""


class Row(Frozen):
    """One pair of checkpoints: seconds for both files, and those of comparing over the slower of the other two."""

    pair: str
    shape: tuple[int, int, int]
    tensor_class: TensorClass
    mismatch: str
    read_seconds: float
    digest_seconds: float
    seconds: float
    ratio: float
    goal: float = GOAL


class Results(Frozen):
    """A whole run with the machine it ran on; seconds are minima."""

    schema_version: int = 2
    threads: int
    rounds: int
    load: tuple[float, float, float]
    machine: str
    torch_version: str
    rows: tuple[Row, ...]


def write_pairs(folder: Path) -> dict[str, Pair]:
    """Writes the checkpoints."""
    scheme = get_scheme("mxfp4-even")
    right = quantize(draw(SHAPE), scheme)
    codes, scales, values = pack(right.codes, scheme.layout), right.scales, dequantize(right)
    steps = torch.randint(1, 9, scales.shape, generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    raised = dequantize(replace(right, scales=scales + steps))
    few = codes.clone()
    few[7, :3] ^= 1
    first = save(folder / "first.safetensors", packed(codes, scales), EXPERTS)

    def pair(name: str, parts: dict[str, Tensor], expected: TensorClass, mismatch: str = "") -> Pair:
        second = save(folder / f"{name}.safetensors", parts, EXPERTS)
        return Pair(first, second, expected, (EXPERTS, *SHAPE), mismatch)

    swapped = packed(codes << 4 | codes >> 4, scales)
    return {
        "equal": pair("equal", packed(codes, scales), TensorClass.BYTE_EQUAL),
        "few codes": pair("few", packed(few, scales), TensorClass.DIFFERENT_CODES),
        "scales one off": pair("scales", packed(codes, scales + 1), TensorClass.DIFFERENT_SCALES, OFFSET),
        "other scales": pair("random", packed(codes, scales + steps), TensorClass.DIFFERENT_SCALES),
        "swapped nibbles": pair("nibbles", swapped, TensorClass.DIFFERENT_CODES, "nibble-order"),
        "fake-quantized": pair("fake", {"weight": values}, TensorClass.VALUE_EQUAL),
        "fake-quantized, one off": pair("twice", {"weight": values * 2}, TensorClass.DIFFERENT_SCALES, OFFSET),
        "fake-quantized, other scales": pair("other", {"weight": raised}, TensorClass.DIFFERENT_SCALES),
        **{f"{num_experts} experts": write_many(folder, num_experts, shape) for num_experts, shape in MANY.items()},
    }


def write_many(folder: Path, num_experts: int, shape: tuple[int, int]) -> Pair:
    """Writes two checkpoints of many experts that differ in all scales."""
    scheme = get_scheme("mxfp4-even")
    right = quantize(draw(shape), scheme)
    sides = [packed(pack(right.codes, scheme.layout), right.scales + step) for step in (0, 1)]
    names = [folder / f"many-{num_experts}-{side}.safetensors" for side in range(len(sides))]
    saved = [save(name, parts, num_experts) for name, parts in zip(names, sides, strict=True)]
    return Pair(saved[0], saved[1], TensorClass.DIFFERENT_SCALES, (num_experts, *shape), OFFSET)


def draw(shape: tuple[int, int]) -> Tensor:
    """Returns seeded weights."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()


def packed(codes: Tensor, scales: Tensor) -> dict[str, Tensor]:
    """Returns the parts of a packed module."""
    return {"weight_packed": codes, "weight_scale": scales}


def save(path: Path, parts: dict[str, Tensor], num_experts: int) -> Path:
    """Writes one checkpoint, every expert alike."""
    state: dict[str, Tensor] = {}
    for expert in range(num_experts):
        stem = f"model.layers.0.mlp.experts.{expert}.down_proj"
        state |= {f"{stem}.{name}": part.clone() for name, part in parts.items()}
    save_file(state, path)
    return path


def check(name: str, pair: Pair, threads: int) -> None:
    """Ends the run if a pair is compared wrongly."""
    found = compare(pair.first, pair.second, threads=threads)
    named = [(one.mismatch, one.explains) for one in found.diagnosis]
    if set(found.classes.values()) != {pair.expected} or named != ([(pair.mismatch, 1.0)] if pair.mismatch else []):
        raise SystemExit(f"{name}: {found.classes}, {named}")


def seconds_of(action: Callable[[], object]) -> float:
    """Returns the wall time of one call."""
    forget_words()
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure_pair(name: str, pair: Pair, threads: int, rounds: int) -> Row:
    """Checks the answer, then times reading, digesting and comparing."""
    check(name, pair, threads)
    both = pair.first, pair.second
    actions: dict[str, Callable[[], object]] = {
        "read": lambda: [sum(path.read_bytes()[::4096]) for path in both],
        "digest": lambda: [fingerprint(path, threads=threads) for path in both],
        "compare": lambda: compare(*both, threads=threads),
    }
    least = dict.fromkeys(actions, float("inf"))
    for _ in range(rounds):
        for what, action in actions.items():
            least[what] = min(least[what], seconds_of(action))
    row = Row(
        pair=name,
        shape=pair.shape,
        tensor_class=pair.expected,
        mismatch=pair.mismatch,
        read_seconds=least["read"],
        digest_seconds=least["digest"],
        seconds=least["compare"],
        ratio=least["compare"] / max(least["read"], least["digest"]),
    )
    met = "met" if row.ratio <= GOAL else "MISSED"
    print(
        f"{name:28} read {row.read_seconds:6.3f} s, digest {row.digest_seconds:6.3f} s, compare {row.seconds:6.3f} s,"
        f" {row.ratio:5.2f} of the slower, goal {GOAL} {met}",
        flush=True,
    )
    return row


def main() -> None:
    """Measures, prints and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/speed_compare.json"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        pairs = write_pairs(Path(folder))
        rows = tuple(measure_pair(name, pair, given.threads, given.rounds) for name, pair in pairs.items())
    results = Results(
        threads=given.threads,
        rounds=given.rounds,
        load=os.getloadavg(),
        machine=f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        torch_version=torch.__version__,
        rows=rows,
    )
    write_atomically(given.output, results.to_json().encode())
    print(f"written to {given.output}, load {results.load[0]:.1f}")


if __name__ == "__main__":
    main()
