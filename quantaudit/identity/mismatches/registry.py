"""All structural mismatches, by name and in the order in which they are looked for."""

from __future__ import annotations

import difflib

from quantaudit.core.errors import InputError
from quantaudit.identity.mismatches import (
    cut_groups,
    exponent_from_ratio,
    exponent_offset,
    included_layer,
    interleaved_gate_up,
    nibble_order,
    permuted_experts,
    quantized_twice,
    shared_scale,
    skipped_layer,
    source_dtype,
    split_blocks,
    stale,
    swapped_gate_up,
    transposed_scales,
    transposed_weights,
    zero_point,
)
from quantaudit.identity.mismatches.protocol import Finding, Layer, Mismatch
from quantaudit.identity.mismatches.scoring import num_differing

# What needs codes or values only comes before what quantizes masters again.
MISMATCHES: tuple[Mismatch, ...] = (
    skipped_layer,
    permuted_experts,
    swapped_gate_up,
    interleaved_gate_up,
    nibble_order,
    split_blocks,
    transposed_weights,
    transposed_scales,
    exponent_offset,
    zero_point,
    stale,
    source_dtype,
    included_layer,
    exponent_from_ratio,
    shared_scale,
    cut_groups,
    quantized_twice,
)


def mismatch_names() -> tuple[str, ...]:
    """Lists the names of all mismatches."""
    return tuple(mismatch.ABOUT.name for mismatch in MISMATCHES)


def get_mismatch(name: str) -> Mismatch:
    """Returns a mismatch by name.

    Raises:
        InputError: If there is none of that name.
    """
    found = {mismatch.ABOUT.name: mismatch for mismatch in MISMATCHES}
    if name in found:
        return found[name]
    near = difflib.get_close_matches(name, found, n=3, cutoff=0.5)
    raise InputError(
        f"the mismatch {name!r}",
        expected=f"one of {', '.join(found)}",
        fix=f"did you mean {', '.join(near)}?" if near else "choose one of them",
    )


def search_mismatches(train: Layer, serve: Layer) -> tuple[Finding, ...]:
    """Asks every mismatch what it accounts for; the most comes first.

    Empty where the sides have equal values, or nothing here accounts for any of their difference.
    """
    if num_differing(train, serve) == 0:
        return ()
    found = [mismatch.recognise(train, serve) for mismatch in MISMATCHES]
    return tuple(sorted((f for f in found if f is not None), key=lambda finding: -finding.explains))


def is_latent(mismatch: Mismatch, train: Layer) -> bool:
    """Says whether a mismatch, in its most common variant, would change no value of this layer, so nobody can see it.

    One that cannot happen to it is not latent.
    """
    served = mismatch.apply(train)
    return served is not None and num_differing(train, served) == 0
