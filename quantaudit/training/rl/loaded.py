"""What an engine was sent: the fields of every weight on every shard, each with the version that it came in.

A field that does not arrive stays what it was, whatever arrives beside it: that is how a dropped bucket leaves new
codes under old scales. Only a change of kind (values where codes were, or another shape) replaces a weight whole.

Legend: S experts of a shard, E all experts, O out, I in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quantaudit.core.scheme import Scheme
from quantaudit.engines.stored import StoredTensor, quantize_stack
from quantaudit.training.rl.bucket import Field, Piece
from quantaudit.training.rl.placement import Placement

_ABOVE = {Field.SCALES: "scales", Field.SECOND_SCALES: "second_scales", Field.OFFSET: "offset"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedWeight:
    """One weight on one shard.

    Attributes:
        fields: What arrived.
        versions: In which version.
        scheme: Its arithmetic; `None` for values.
        shape: `[S, O, I]`, or that of a dense parameter.
        code_dtype: Dtype of unpacked codes.
    """

    fields: Mapping[Field, Tensor]
    versions: Mapping[Field, int]
    scheme: Scheme | None
    shape: tuple[int, ...]
    code_dtype: torch.dtype = torch.uint8

    @property
    def oldest(self) -> int:
        """Returns the oldest version among its fields."""
        return min(self.versions.values())

    def as_weight(self) -> StoredTensor | Tensor:
        """Returns packed codes with their scales, or the values."""
        if Field.VALUES in self.fields:
            return self.fields[Field.VALUES]
        assert self.scheme is not None
        return StoredTensor(
            packed=self.fields[Field.CODES],
            code_dtype=self.code_dtype,
            scales=self.fields[Field.SCALES],
            second_scales=self.fields.get(Field.SECOND_SCALES),
            offset=self.fields.get(Field.OFFSET),
            shape=self.shape,
            dtype=torch.float32,
            scheme=self.scheme,
        )


def take_in(held: LoadedWeight | None, piece: Piece, version: int) -> LoadedWeight:
    """Returns the weight after a piece of it has arrived; values with a scheme are quantized here."""
    arrived, code_dtype = _taken(piece)
    is_values = Field.VALUES in arrived
    if held is None or held.shape != piece.shape or (Field.VALUES in held.fields) != is_values:
        held = LoadedWeight(fields={}, versions={}, scheme=None, shape=piece.shape)
    return replace(
        held,
        fields={**held.fields, **arrived},
        versions={**held.versions, **dict.fromkeys(arrived, version)},
        scheme=None if is_values else piece.scheme,
        code_dtype=code_dtype,
    )


def _taken(piece: Piece) -> tuple[dict[Field, Tensor], torch.dtype]:
    """Returns the fields that a piece brings, and the dtype of codes."""
    if piece.field is Field.VALUES and piece.scheme is not None:
        stored = quantize_stack(piece.tensor, piece.scheme)
        return fields_of(stored), stored.code_dtype
    return {piece.field: piece.tensor}, piece.code_dtype


def fields_of(weight: StoredTensor | Tensor) -> dict[Field, Tensor]:
    """Returns the tensors that make up a weight, by field."""
    if isinstance(weight, Tensor):
        return {Field.VALUES: weight}
    above = {field: getattr(weight, name) for field, name in _ABOVE.items()}
    return {Field.CODES: weight.packed, **{field: t for field, t in above.items() if t is not None}}


def gather(shards: Iterable[StoredTensor | Tensor], placement: Placement) -> StoredTensor | Tensor:
    """Returns a whole weight, experts in logical order, from its shards; values if any shard holds values.

    Args:
        shards: In the order of the shards.
        placement: Where the experts are looked for.
    """
    parts = list(shards)
    order_E = torch.tensor(placement.place)
    if any(isinstance(part, Tensor) for part in parts):
        values = [p if isinstance(p, Tensor) else p.decode(torch.float32) for p in parts]
        widest = torch.float32 if any(v.dtype is torch.float32 for v in values) else values[0].dtype
        return torch.cat([v.to(widest) for v in values])[order_E]
    stored = [part for part in parts if isinstance(part, StoredTensor)]
    joined = {
        name: None if getattr(stored[0], name) is None else torch.cat([getattr(p, name) for p in stored])[order_E]
        for name in ("packed", "scales", "second_scales", "offset")
    }
    packed, scales = joined["packed"], joined["scales"]
    assert packed is not None and scales is not None
    return replace(
        stored[0],
        packed=packed,
        scales=scales,
        second_scales=joined["second_scales"],
        offset=joined["offset"],
        shape=(len(order_E), *stored[0].shape[1:]),
    )
