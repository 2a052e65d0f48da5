"""What travels from the trainer to the engine: pieces of weights, filled into buckets, each bucket with its version.

A piece is one field (codes, scales, ...) of one weight on one shard, or a dense parameter, which every shard gets. It
carries the name that the engine knows the weight by.

Legend: S experts of a shard, O out, I in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from quantaudit.core.scheme import Scheme

EVERY_SHARD = -1


class Field(StrEnum):
    """What a piece is of its weight."""

    CODES = "codes"
    SCALES = "scales"
    SECOND_SCALES = "second-scales"
    OFFSET = "offset"
    VALUES = "values"  # the weight itself: kept as it is, or quantized on arrival if the piece has a scheme


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """One tensor on its way.

    Attributes:
        name: The engine's name: `layers.3.moe.experts.w13` for an expert stack, `layers.3.attn.q_proj.weight`.
        part: Which half of a fused stack: the trainer's role, `w1`, `w2`, `w3`; empty for dense parameters.
        field: What it is.
        shard: Where it goes; `EVERY_SHARD` for dense parameters.
        tensor: Leading axis S for experts, in the order of the shard's slots.
        scheme: Arithmetic of the weight; `None` for values that stay as they are.
        shape: `[S, O, I]`, shape of the whole weight on this shard; that of the tensor for dense parameters.
        code_dtype: int8 or uint8, dtype of unpacked codes.
    """

    name: str
    part: str
    field: Field
    shard: int
    tensor: Tensor
    scheme: Scheme | None = None
    shape: tuple[int, ...]
    code_dtype: torch.dtype = torch.uint8

    @property
    def num_bytes(self) -> int:
        """Returns the size of the tensor."""
        return self.tensor.numel() * self.tensor.element_size()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bucket:
    """Pieces that travel together.

    Attributes:
        number: 0-based place in its sync.
        version: Version of the weights: optimizer steps that made them.
        pieces: At least one.
    """

    number: int
    version: int
    pieces: tuple[Piece, ...]


def fill_buckets(pieces: list[Piece], version: int, max_bytes: int) -> list[Bucket]:
    """Fills buckets in order; a piece that is larger than a bucket has one to itself."""
    filled: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        if not filled or piece.num_bytes > room:
            filled.append([])
            room = max_bytes
        filled[-1].append(piece)
        room -= piece.num_bytes
    return [Bucket(number=n, version=version, pieces=tuple(some)) for n, some in enumerate(filled)]
