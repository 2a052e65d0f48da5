"""Speed of the digests: bytes against blake3, values against decoding the same codes; minima, interleaved, in one run.

    python benchmarks/speed/fingerprint.py [--threads 1] [--rounds 30] [-o reports/runs/speed_fingerprint.json]

Every round times everything once, so that whatever else the machine does hits all alike. The matrix is MXFP4, 4096 x
4096, as `quantaudit fingerprint` reads it: `value digest` decodes and sums in one compiled pass, which takes over once
compiling pays, `eager digest` is what small files get. `compiled decode` is written here for speed alone, into a buffer
that is kept, and `decode` is that of the package. blake3 gets the same bytes and the same number of threads. Before
anything is timed, compiled leaves are compared with eager ones.
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
from quantaudit.hooks.leaf import Leaf, leaf_of_bytes, leaf_of_values
from quantaudit.identity.fingerprint_compiled import choose_byte_sum
from quantaudit.identity.fingerprint_fused import PIECE as COMPILED_PIECE
from quantaudit.identity.fingerprint_fused import leaf_of_codes
from quantaudit.identity.layouts.stored import Packing, Part, ScaleKind, StoredMatrix
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
        eager_to_decode: Time of the eager digest over that of the eager decoding that it goes through.
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
    eager_to_decode: float


def make_matrix() -> StoredMatrix:
    """Returns seeded MXFP4 codes and scales."""
    x = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    q = quantize(x, get_scheme("mxfp4-even"))
    packing = Packing(element=E2M1, layout=Layout.LOW_NIBBLE_FIRST, scale=ScaleKind.E8M0, tile_rows=1, tile_cols=GROUP)
    parts = {Part.CODES: pack(q.codes, Layout.LOW_NIBBLE_FIRST), Part.SCALES: q.scales}
    return StoredMatrix(encoding=Encoding.MXFP4, shape=(SIZE, SIZE), parts=parts, packing=packing)


def digest_values(matrix: StoredMatrix) -> Leaf:
    """Returns the value leaf of the matrix by the compiled pass."""
    leaf = leaf_of_codes(matrix, 0, torch.bfloat16)
    if leaf is None:
        raise SystemExit("compiling failed")
    return leaf


def digest_eagerly(matrix: StoredMatrix) -> Leaf:
    """Returns the value leaf of the matrix, decoded to bf16 piece by piece."""
    total = Leaf()
    for rows in matrix.row_pieces():
        total += leaf_of_values(matrix.values(rows, torch.bfloat16), first_row=rows.start)
    return total


def decode_all(matrix: StoredMatrix) -> None:
    """Decodes the matrix to bf16 piece by piece."""
    for rows in matrix.row_pieces():
        matrix.values(rows, torch.bfloat16)


def decode_pairs(packed: Tensor, exponents: Tensor, out: Tensor) -> None:
    """Decodes [R, G, 16] bytes of codes to two bf16 in one int32; `exponents`, [R, G, 1], are what a scale adds to it.

    All in integers: the magnitude is halved steps of a binade, but for zero and for .5, the one subnormal number.
    """
    codes = packed.to(torch.int32)
    low, high = bf16_bits(codes & 15, exponents), bf16_bits(codes >> 4, exponents)
    out.copy_(low | (high << 16))


def bf16_bits(codes: Tensor, exponents: Tensor) -> Tensor:
    """Returns the bf16 bits of E2M1 codes under scales in the range of normal numbers."""
    magnitude = codes & 7
    bits = (magnitude << 6) + exponents + torch.where(magnitude == 1, (126 << 7) - (1 << 6), 126 << 7)
    return torch.where(magnitude == 0, 0, bits) | ((codes & 8) << 12)


def make_compiled_decode(matrix: StoredMatrix) -> Callable[[], None]:
    """Returns a call that decodes the matrix by compiled code, piece by piece into one buffer."""
    compiled = compile_exactly(decode_pairs, "decode_pairs")
    packed = matrix.parts[Part.CODES].view(SIZE, -1, GROUP // 2)
    rows = COMPILED_PIECE // SIZE
    out = torch.zeros(rows, SIZE // GROUP, GROUP // 2, dtype=torch.int32)

    def run() -> None:
        for piece in matrix.row_pieces(COMPILED_PIECE):
            exponents = (matrix.parts[Part.SCALES][piece].to(torch.int32) - 127) << 7
            compiled(packed[piece], exponents.unsqueeze(-1), out)

    run()
    last = slice(SIZE - rows, SIZE)
    if not torch.equal(out.view(torch.bfloat16).view(rows, SIZE), matrix.values(last, torch.bfloat16)):
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
    byte_summer = choose_byte_sum(1, compile_after=0)
    if digest_values(matrix) != digest_eagerly(matrix):
        raise SystemExit("compiled and eager value leaves differ")
    if leaf_of_bytes(codes, summer=byte_summer) != leaf_of_bytes(codes):
        raise SystemExit("compiled and eager byte leaves differ")
    raw = codes.numpy().data.cast("B")
    actions: dict[str, Callable[[], object]] = {
        "blake3": lambda: blake3(raw, max_threads=threads).digest(),
        "byte digest": lambda: leaf_of_bytes(codes, summer=byte_summer),
        "decode": lambda: decode_all(matrix),
        "compiled decode": make_compiled_decode(matrix),
        "value digest": lambda: digest_values(matrix),
        "eager digest": lambda: digest_eagerly(matrix),
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
        eager_to_decode=least["eager digest"] / least["decode"],
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
        f"eager: {results.eager_to_decode:.2f} x eager decoding; load {results.load[0]:.1f}"
    )
    write_atomically(given.output, results.to_json().encode())
    print(f"written to {given.output}")


if __name__ == "__main__":
    main()
