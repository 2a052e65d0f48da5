"""Speed of `compare` against reading and digesting the same files: it should be bounded by the slower of the two.

    python benchmarks/speed/compare.py [--threads 1] [--rounds 5] [-o reports/runs/speed_compare.json]

Two checkpoints of MXFP4 experts, 4096 x 4096, from the page cache: equal bytes, one expert in which a few codes differ,
and other scales everywhere. `read` touches every byte of both files, `digest` takes both manifests eagerly, as a
checkpoint of this size is. Every round times everything once; minima are compared.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from quantaudit.core.comparison import TensorClass
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.identity.compare_paths import compare
from quantaudit.identity.fingerprint_path import fingerprint
from quantaudit.numerics import get_scheme, pack, quantize

SIZE, EXPERTS = 4096, 2
GOAL = 1.0  # of the slower of reading and digesting
EXPECTED = {
    "equal": TensorClass.BYTE_EQUAL,
    "few codes": TensorClass.DIFFERENT_CODES,
    "other scales": TensorClass.DIFFERENT_SCALES,
}


class Row(Frozen):
    """One pair of checkpoints: seconds, and over those of the slower of reading and digesting both."""

    pair: str
    seconds: float
    ratio: float


class Results(Frozen):
    """A whole run with the machine it ran on; seconds are minima."""

    schema_version: int = 1
    shape: tuple[int, int, int] = (EXPERTS, SIZE, SIZE)
    threads: int
    rounds: int
    load: tuple[float, float, float]
    machine: str
    torch_version: str
    read_seconds: float
    digest_seconds: float
    rows: tuple[Row, ...]


def write_files(folder: Path) -> dict[str, Path]:
    """Writes the checkpoints: one, and what it is compared with."""
    x = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0)).bfloat16()
    scheme = get_scheme("mxfp4-even")
    right = quantize(x, scheme)
    codes, scales = pack(right.codes, scheme.layout), right.scales
    few = codes.clone()
    few[7, :3] ^= 1
    sides = {
        "first": (codes, scales),
        "equal": (codes, scales),
        "few codes": (few, scales),
        "other scales": (codes, scales + 1),
    }
    return {name: save(folder / f"{name.replace(' ', '-')}.safetensors", *parts) for name, parts in sides.items()}


def save(path: Path, codes: Tensor, scales: Tensor) -> Path:
    """Writes one checkpoint, every expert alike."""
    state: dict[str, Tensor] = {}
    for expert in range(EXPERTS):
        stem = f"model.layers.0.mlp.experts.{expert}.down_proj"
        state |= {f"{stem}.weight_packed": codes.clone(), f"{stem}.weight_scale": scales.clone()}
    save_file(state, path)
    return path


def seconds_of(action: Callable[[], object]) -> float:
    """Returns the wall time of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure(folder: Path, threads: int, rounds: int) -> Results:
    """Checks every answer, then times everything."""
    paths = write_files(folder)
    first = paths.pop("first")
    for name, path in paths.items():
        found = set(compare(first, path, threads=threads).classes.values())
        if found != {EXPECTED[name]}:
            raise SystemExit(f"{name}: {found}")
    both = (first, paths["few codes"])
    actions: dict[str, Callable[[], object]] = {
        "read": lambda: [sum(path.read_bytes()[::4096]) for path in both],
        "digest": lambda: [fingerprint(path, threads=threads) for path in both],
    }
    for name, path in paths.items():
        actions[name] = lambda path=path: compare(first, path, threads=threads)  # type: ignore[misc]
    least = dict.fromkeys(actions, float("inf"))
    for _ in range(rounds):
        for name, action in actions.items():
            least[name] = min(least[name], seconds_of(action))
    slower = max(least["read"], least["digest"])
    return Results(
        threads=threads,
        rounds=rounds,
        load=os.getloadavg(),
        machine=f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        torch_version=torch.__version__,
        read_seconds=least["read"],
        digest_seconds=least["digest"],
        rows=tuple(Row(pair=name, seconds=least[name], ratio=least[name] / slower) for name in paths),
    )


def main() -> None:
    """Measures, prints and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, default=Path("reports/runs/speed_compare.json"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(Path(folder), given.threads, given.rounds)
    print(f"read {results.read_seconds:.3f} s, digest {results.digest_seconds:.3f} s, both sides")
    for row in results.rows:
        met = "met" if row.ratio <= GOAL else "MISSED"
        print(f"{row.pair:14} {row.seconds:7.3f} s, {row.ratio:5.2f} of the slower, goal {GOAL} {met}")
    write_atomically(given.output, results.to_json().encode())
    print(f"written to {given.output}, load {results.load[0]:.1f}")


if __name__ == "__main__":
    main()
