"""The kernel's own layout of an expert stack, made from what was loaded by the post-load step.

    rows      gate rows, then up rows, fused into one stack of bytes
    codes     nibbles of a byte swapped, then tiles of 8 rows x 8 bytes, each tile in one run of memory
    scales    transposed: those of one column of groups lie together

Nothing of it has the checkpoint's shapes or order, and nothing follows by itself when new weights are loaded: a layout
that is not built again goes on serving the old ones. The kernel computes from it alone.

Legend: S experts of a shard, O out, I in, R rows of all parts, B bytes of a row, P parts, G groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from quantaudit.core.scheme import Layout, Scheme
from quantaudit.engines.stored import StoredTensor
from quantaudit.training.rl.bucket import Field
from quantaudit.training.rl.faults import Halves, PostLoad
from quantaudit.training.rl.loaded import LoadedWeight

TILE = 8
_ABOVE = (Field.SCALES, Field.SECOND_SCALES, Field.OFFSET)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DerivedLayout:
    """One expert stack on one shard as the kernel reads it. Never changed: a post-load step makes another.

    Attributes:
        name: The engine's name of the stack.
        shard: Its shard.
        parts: Roles of the halves, in the order in which the kernel takes the rows.
        tiles: uint8 `[S, R / 8, B / 8, 8, 8]`, filled with zeros.
        above: Scales, second scales and offset, those that the scheme has, all parts together.
        scheme: Its arithmetic; `None` for values.
        shape: `[S, O, I]` of one part.
        packed_dtype: Dtype of packed codes, or of the values.
        code_dtype: Dtype of unpacked codes.
        version: Oldest version of what it was made from.
    """

    name: str
    shard: int
    parts: tuple[str, ...]
    tiles: Tensor
    above: Mapping[Field, Tensor]
    scheme: Scheme | None
    shape: tuple[int, ...]
    packed_dtype: torch.dtype
    code_dtype: torch.dtype
    version: int


def derive_layout(
    name: str, shard: int, weights: Mapping[str, LoadedWeight], post: PostLoad, held: DerivedLayout | None
) -> DerivedLayout:
    """Builds the layout of a stack.

    Args:
        name: The engine's name.
        shard: The shard.
        weights: Loaded weights by role, gate before up, all of one scheme and shape.
        post: What the step does.
        held: The layout that is replaced.
    """
    parts = tuple(weights)
    order = tuple(reversed(parts)) if post.halves is Halves.UP_FIRST else parts
    is_interleaved = post.halves is Halves.INTERLEAVED and len(parts) > 1
    first = weights[parts[0]]
    main = Field.CODES if first.scheme is not None else Field.VALUES
    rows_SRB = _join_rows([weights[p].fields[main].view(torch.uint8) for p in order], is_interleaved=is_interleaved)
    above = {
        field: _join_above([weights[p].fields[field] for p in order], is_interleaved=is_interleaved)
        for field in _ABOVE
        if field in first.fields
    }
    if not post.refresh_scales and held is not None and held.above.keys() == above.keys():
        above = dict(held.above)
    return DerivedLayout(
        name=name,
        shard=shard,
        parts=parts,
        tiles=_tile(_swap_nibbles(rows_SRB, first.scheme)),
        above=above,
        scheme=first.scheme,
        shape=first.shape,
        packed_dtype=first.fields[main].dtype,
        code_dtype=first.code_dtype,
        version=min(weight.oldest for weight in weights.values()),
    )


def unpack_layout(layout: DerivedLayout) -> dict[str, StoredTensor | Tensor]:
    """Returns what the layout holds of every part, by role, in the checkpoint's arrangement."""
    num_rows = len(layout.parts) * layout.shape[1]
    itemsize = torch.empty((), dtype=layout.packed_dtype).element_size()
    num_bytes = _num_packed(layout) * itemsize
    rows_SRB = _swap_nibbles(_untile(layout.tiles, num_rows, num_bytes), layout.scheme)
    packed = [rows.contiguous().view(layout.packed_dtype) for rows in rows_SRB.chunk(len(layout.parts), dim=1)]
    if layout.scheme is None:
        return dict(zip(layout.parts, packed, strict=True))
    above = {field: _split_above(joined, len(layout.parts)) for field, joined in layout.above.items()}
    return {
        part: StoredTensor(
            packed=packed[p],
            code_dtype=layout.code_dtype,
            scales=above[Field.SCALES][p],
            second_scales=above[Field.SECOND_SCALES][p] if Field.SECOND_SCALES in above else None,
            offset=above[Field.OFFSET][p] if Field.OFFSET in above else None,
            shape=layout.shape,
            dtype=torch.float32,
            scheme=layout.scheme,
        )
        for p, part in enumerate(layout.parts)
    }


def decode_layout(layout: DerivedLayout) -> dict[str, Tensor]:
    """Returns the values of every part, by role: `[S, O, I]` fp32, what the kernel multiplies with."""
    return {
        part: weight.decode(torch.float32) if isinstance(weight, StoredTensor) else weight.float()
        for part, weight in unpack_layout(layout).items()
    }


def _num_packed(layout: DerivedLayout) -> int:
    """Returns the packed codes (or values) of a row."""
    cols = layout.shape[-1]
    if layout.scheme is None:
        return cols
    match layout.scheme.layout:
        case Layout.BYTES:
            return cols
        case Layout.INT32_WORDS:
            return -(-cols // 8)
    return -(-cols // 2)


def _join_rows(parts: list[Tensor], *, is_interleaved: bool) -> Tensor:
    """Joins `[S, O, *]` to `[S, P * O, *]`."""
    return torch.stack(parts, dim=2).flatten(1, 2) if is_interleaved else torch.cat(parts, dim=1)


def _join_above(parts: list[Tensor], *, is_interleaved: bool) -> Tensor:
    joined = _join_rows(parts, is_interleaved=is_interleaved)
    return joined.mT.contiguous() if joined.ndim > 2 else joined


def _split_above(joined: Tensor, num_parts: int) -> list[Tensor]:
    rows = joined.mT if joined.ndim > 2 else joined
    return [part.contiguous() for part in rows.chunk(num_parts, dim=1)]


def _swap_nibbles(bytes_SRB: Tensor, scheme: Scheme | None) -> Tensor:
    """Swaps the two codes of a byte, where a byte holds two; twice is nothing."""
    if scheme is None or scheme.layout is Layout.BYTES:
        return bytes_SRB
    return (bytes_SRB << 4) | (bytes_SRB >> 4)


def _tile(rows_SRB: Tensor) -> Tensor:
    num_rows, num_bytes = rows_SRB.shape[1:]
    filled = torch.nn.functional.pad(rows_SRB, (0, -num_bytes % TILE, 0, -num_rows % TILE))
    cut = torch.unflatten(torch.unflatten(filled, 2, (-1, TILE)), 1, (-1, TILE))
    return cut.transpose(2, 3).contiguous()


def _untile(tiles: Tensor, num_rows: int, num_bytes: int) -> Tensor:
    filled = tiles.transpose(2, 3).flatten(3, 4).flatten(1, 2)
    return filled[:, :num_rows, :num_bytes]
