"""The same quantizer is fed masters of another dtype: fp32 in the trainer, their bf16 or fp16 export in the server."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from quantaudit.identity.mismatches.protocol import About, Finding, Kind, Layer, Weight
from quantaudit.identity.mismatches.scoring import Variant, best
from quantaudit.identity.mismatches.weights import map_weights, requantized

ABOUT = About(
    name="source-dtype",
    kind=Kind.ARITHMETIC,
    field="source.dtype",
    sentence="The weights are quantized from masters in another dtype.",
)
_NARROW = {torch.bfloat16: "bfloat16", torch.float16: "float16"}


def apply(layer: Layer) -> Layer | None:
    """Quantizes the masters rounded to bf16."""
    return map_weights(layer, partial(_from, dtype=torch.bfloat16))


def recognise(train: Layer, serve: Layer) -> Finding | None:
    """Finds masters that were rounded to bf16 or fp16 before they were quantized."""
    return best(ABOUT, train, serve, _variants(train))


def _variants(train: Layer) -> Iterator[Variant]:
    masters = [weight.master.dtype for weight in train.values() if weight.master is not None]
    source = str(masters[0]).removeprefix("torch.") if masters else "unknown"
    for dtype, name in _NARROW.items():
        yield Variant(source, name, partial(map_weights, change=partial(_from, dtype=dtype)), is_by_rows=True)
    # A scheme may compute in the dtype of its input.
    computed = partial(map_weights, change=partial(_from, dtype=torch.bfloat16, is_widened=True))
    yield Variant(source, "bfloat16, computed with in float32", computed, is_by_rows=True)


def _from(weight: Weight, *, dtype: torch.dtype, is_widened: bool = False) -> Weight | None:
    if weight.quantized is None or weight.master is None:
        return None
    rounded = weight.master.to(dtype)
    # fp16 is no input of ours, and exact in fp32.
    return requantized(weight, rounded.float() if is_widened or dtype == torch.float16 else rounded)
