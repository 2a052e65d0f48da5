"""One side packs neighbours into a byte, the other the two halves of a block; the bytes are read by the other's rule.

With blocks of b codes, a split byte j holds codes j and j + b/2. Read wrongly, 0 1 2 3 becomes 0 2 1 3 for b = 4.
ggml's blocks have 32 codes; words of 8 nibbles that store the even codes first are the same with b = 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from torch import Tensor

from quantaudit.core.scheme import Layout
from quantaudit.identity.mismatches.protocol import About, Finding, Kind, Layer, Weight
from quantaudit.identity.mismatches.scoring import Variant, best
from quantaudit.identity.mismatches.weights import map_weights, with_quantized

ABOUT = About(
    name="split-blocks",
    kind=Kind.LAYOUT,
    field="layout.blocks",
    sentence="Codes packed as neighbours are read as the halves of a block, or the other way round.",
)
_BLOCKS = (32, 8, 16, 0)  # 0: the whole row is one block
_NEIGHBOURS = "neighbours share a byte"


def apply(layer: Layer) -> Layer | None:
    """Reads neighbours as halves of blocks of 32, or of whole rows where 32 does not divide them.

    Codes that the scheme packs as halves are read as neighbours.
    """
    return map_weights(layer, _misread)


def recognise(train: Layer, serve: Layer) -> Finding | None:
    """Finds codes that are the trainer's with every block taken apart, or put together, by the other rule."""
    return best(ABOUT, train, serve, _variants())


def read_as_halves(codes: Tensor, block: int) -> Tensor:
    """Returns codes [..., C] packed as neighbours and read as halves of blocks: the even ones, then the odd ones."""
    return codes.reshape(*codes.shape[:-1], -1, block // 2, 2).transpose(-1, -2).reshape(codes.shape)


def read_as_neighbours(codes: Tensor, block: int) -> Tensor:
    """Returns codes [..., C] packed as halves of blocks and read as neighbours (the inverse)."""
    return codes.reshape(*codes.shape[:-1], -1, 2, block // 2).transpose(-1, -2).reshape(codes.shape)


def _variants() -> Iterator[Variant]:
    for block in _BLOCKS:
        halves = f"halves of {f'blocks of {block}' if block else 'a row'} share a byte"
        apart, together = (partial(_reordered, block=block, is_split=is_split) for is_split in (False, True))
        yield Variant(_NEIGHBOURS, halves, partial(map_weights, change=apart), is_by_rows=True)
        yield Variant(halves, _NEIGHBOURS, partial(map_weights, change=together), is_by_rows=True)


def _misread(weight: Weight) -> Weight | None:
    is_split = weight.quantized is not None and weight.quantized.scheme.layout is Layout.GGML_SPLIT
    return _reordered(weight, block=32, is_split=is_split) or _reordered(weight, block=0, is_split=is_split)


def _reordered(weight: Weight, *, block: int, is_split: bool) -> Weight | None:
    stored = weight.quantized
    if stored is None or stored.scheme.element.bits != 4:
        return None
    size = block or stored.codes.shape[-1]
    if stored.codes.shape[-1] % size or size % 2:
        return None
    codes = read_as_neighbours(stored.codes, size) if is_split else read_as_halves(stored.codes, size)
    return with_quantized(weight, replace(stored, codes=codes))
