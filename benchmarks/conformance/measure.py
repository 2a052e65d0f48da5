"""Counts what differs between two outcomes: stored scales, codes, and decoded values.

A part is compared only where both store it in the same form (dtype and shape). Values are widened exactly to fp32;
+0 equals -0 and NaN equals NaN. Of two-level scales the block scales are compared; the second level shows in values.
"""

from __future__ import annotations

from torch import Tensor

from benchmarks.conformance.families import family_of
from benchmarks.conformance.sides import Outcome, Side, reference_of
from benchmarks.conformance.table import Counts, Pair, Part, Shares
from quantaudit.backends.protocol import Origin


def mismatch(a: Outcome, b: Outcome, part: Part) -> Tensor | None:
    """Returns where one part differs, in its stored shape; `None` if it is not stored in the same form."""
    if part is Part.VALUES:
        left, right = a.values.float(), b.values.float()
        return (left != right) & ~(left.isnan() & right.isnan())
    first, second = (a.scales, b.scales) if part is Part.SCALES else (a.codes, b.codes)
    if first is None or second is None or first.dtype != second.dtype or first.shape != second.shape:
        return None
    return first != second


def compare(a: Side, b: Side, left: Outcome, right: Outcome, dtype: str) -> Pair:
    """Compares two outcomes of the same weights."""
    found = {part: mismatch(left, right, part) for part in Part}
    counts = {part.value: None if where is None else int(where.sum()) for part, where in found.items()}
    shares = {part.value: None if where is None else float(where.double().mean()) for part, where in found.items()}
    return Pair(
        a=a.name,
        b=b.name,
        family=family_of(left.scheme),
        scheme=a.scheme,
        backend=a.backend,
        version=a.version,
        dtype=dtype,
        restated=Origin.RESTATED in (a.origin, b.origin),
        num_pairs=left.values.numel(),
        identical=not any(counts.values()),
        differing=Counts.model_validate(counts),
        shares=Shares.model_validate(shares),
        note="decoding only" if left.codes is None else "",
    )


def reference_for(x: Tensor, theirs: Outcome) -> Outcome:
    """Runs the reference of a library's outcome, decoded to the dtype that the library decodes to."""
    return reference_of(x, theirs.scheme, theirs.values.dtype)
