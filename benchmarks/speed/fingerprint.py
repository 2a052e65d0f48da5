"""Speed of the digests: bytes against blake3, values against decoding the same codes; minima, interleaved, in one run.

    python benchmarks/speed/fingerprint.py [--threads 1] [--rounds 30] [-o reports/runs/speed_fingerprint.json]

Every round times everything once, so that whatever else the machine does hits all alike. The matrix is MXFP4, 4096 x
4096, in pieces that stay in cache, as `quantaudit fingerprint` reads it. `decode` is the decoding that the digest goes
through, and `compiled decode` one written here for speed alone, into a buffer that is kept. blake3 gets the same bytes
and the same number of threads. Before anything is timed, compiled leaves are compared with eager ones.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
from blake3 import blake3
from torch import Tensor

from quantaudit.core.comparison import Encoding
from quantaudit.core.format import E2M1
from quantaudit.core.scheme import Layout
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.hooks.leaf import Summer, leaf_of_bytes, leaf_of_values
from quantaudit.identity.fingerprint_compiled import choose_byte_sum, choose_value_sum
from quantaudit.identity.layouts.stored import PIECE, Packing, Part, ScaleKind, StoredMatrix
from quantaudit.numerics import get_scheme, pack, quantize
from quantaudit.numerics.compiler import compile_exactly

SIZE = 4096
GROUP = 32

# Least acceptable ratios: bytes at least half as fast as blake3, values at most 1.5 x the decoding.
BYTES_GOAL, VALUES_GOAL = 0.5, 1.5


class Results(Frozen):
    """A whole run with the machine it ran on; seconds are minima.

    Attributes:
        bytes_to_blake3: Speed of the byte digest as a fraction of that of blake3 (larger is better).
        values_to_compiled_decode: Time of the value digest, decoding included, over that of the compiled decoding.
        values_to_decode: The same over the decoding that the digest goes through.
    """

    schema_version: int = 1
    shape: tuple[int, int]
    threads: int
    rounds: int
    load: tuple[float, float, float]
    machine: str
    torch_version: str
    seconds: dict[str, float]
    bytes_to_blake3: float
    values_to_compiled_decode: float
    values_to_decode: float


def make_matrix() -> StoredMatrix:
    """Returns seeded MXFP4 codes and scales."""
    x = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    q = quantize(x, get_scheme("mxfp4-even"))
    packing = Packing(element=E2M1, layout=Layout.LOW_NIBBLE_FIRST, scale=ScaleKind.E8M0, tile_rows=1, tile_cols=GROUP)
    parts = {Part.CODES: pack(q.codes, Layout.LOW_NIBBLE_FIRST), Part.SCALES: q.scales}
    return StoredMatrix(encoding=Encoding.MXFP4, shape=(SIZE, SIZE), parts=parts, packing=packing)


def digest_values(matrix: StoredMatrix, summer: Summer | None) -> str:
    """Returns the value leaf of the matrix, decoded to bf16 piece by piece."""
    leaves = (
        leaf_of_values(matrix.values(rows, torch.bfloat16), first_row=rows.start, summer=summer)
        for rows in matrix.row_pieces()
    )
    total = next(leaves)
    for leaf in leaves:
        total += leaf
    return total.hex


def decode_all(matrix: StoredMatrix) -> None:
    """Decodes the matrix to bf16 piece by piece."""
    for rows in matrix.row_pieces():
        matrix.values(rows, torch.bfloat16)


def decode_pairs(packed: Tensor, scales: Tensor, out: Tensor) -> None:
    """Decodes [R, G, 16] bytes of codes under [R, G, 1] scales into [R, G, 16, 2] bf16."""
    codes = packed.to(torch.int32)
    halves = [((half & 7) << 22).view(torch.float32) * 2.0**126 * scales for half in (codes & 15, codes >> 4)]
    signs = [(half >> 3) << 31 for half in (codes & 15, codes >> 4)]
    signed = [(value.view(torch.int32) | sign).view(torch.float32) for value, sign in zip(halves, signs, strict=True)]
    out.copy_(torch.stack(signed, -1))


def make_compiled_decode(matrix: StoredMatrix) -> Callable[[], None]:
    """Returns a call that decodes the matrix by compiled code, piece by piece into one buffer."""
    compiled = compile_exactly(decode_pairs, "decode_pairs")
    packed = matrix.parts[Part.CODES].view(SIZE, -1, GROUP // 2)
    rows = PIECE // SIZE
    out = torch.zeros(rows, SIZE // GROUP, GROUP // 2, 2, dtype=torch.bfloat16)

    def run() -> None:
        for piece in matrix.row_pieces():
            compiled(packed[piece], matrix.scales(piece).unsqueeze(-1), out)

    run()
    last = slice(SIZE - rows, SIZE)
    if not torch.equal(out.view(rows, SIZE), matrix.values(last, torch.bfloat16)):
        raise SystemExit("the compiled decoding differs from the reference")
    return run


def seconds_of(action: Callable[[], object]) -> float:
    """Returns the wall time of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure(threads: int, rounds: int) -> Results:
    """Compares compiled and eager leaves, then times everything."""
    torch.set_num_threads(threads)
    matrix = make_matrix()
    codes = matrix.parts[Part.CODES]
    value_summer, byte_summer = choose_value_sum(1, compile_after=0), choose_byte_sum(1, compile_after=0)
    if digest_values(matrix, value_summer) != digest_values(matrix, None):
        raise SystemExit("compiled and eager value leaves differ")
    if leaf_of_bytes(codes, summer=byte_summer) != leaf_of_bytes(codes):
        raise SystemExit("compiled and eager byte leaves differ")
    raw = codes.numpy().data.cast("B")
    actions: dict[str, Callable[[], object]] = {
        "blake3": lambda: blake3(raw, max_threads=threads).digest(),
        "byte digest": lambda: leaf_of_bytes(codes, summer=byte_summer),
        "decode": lambda: decode_all(matrix),
        "compiled decode": make_compiled_decode(matrix),
        "value digest": lambda: digest_values(matrix, value_summer),
    }
    least = dict.fromkeys(actions, float("inf"))
    for _ in range(rounds):
        for name, action in actions.items():
            least[name] = min(least[name], seconds_of(action))
    return Results(
        shape=(SIZE, SIZE),
        threads=threads,
        rounds=rounds,
        load=os.getloadavg(),
        machine=f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        torch_version=torch.__version__,
        seconds=least,
        bytes_to_blake3=least["blake3"] / least["byte digest"],
        values_to_compiled_decode=least["value digest"] / least["compiled decode"],
        values_to_decode=least["value digest"] / least["decode"],
    )


def main() -> None:
    """Measures, prints and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("-o", "--output", type=Path, default=Path("reports/runs/speed_fingerprint.json"))
    given = parser.parse_args()
    results = measure(given.threads, given.rounds)
    for name, seconds in results.seconds.items():
        print(f"{name:16} {1e3 * seconds:9.2f} ms  {1e9 * seconds / SIZE**2:6.2f} ns a value")
    bytes_met = "met" if results.bytes_to_blake3 >= BYTES_GOAL else "MISSED"
    values_met = "met" if results.values_to_compiled_decode <= VALUES_GOAL else "MISSED"
    print(f"bytes: {results.bytes_to_blake3:.2f} of the speed of blake3, goal {BYTES_GOAL} {bytes_met}")
    print(
        f"values: {results.values_to_compiled_decode:.2f} x a compiled decoding, goal {VALUES_GOAL} {values_met}; "
        f"{results.values_to_decode:.2f} x the decoding that it goes through; load {results.load[0]:.1f}"
    )
    write_atomically(given.output, results.to_json().encode())
    print(f"written to {given.output}")


if __name__ == "__main__":
    main()
