"""A shard boundary runs through groups: every rank quantizes what it holds, with groups that start at its own edge.

Ranks hold equal parts of the rows or of the columns. A group that a boundary cuts becomes two smaller ones, each with
its own scale, and a scale of the whole matrix becomes one of every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from quantaudit.core.scheme import LinearScale, PerBlock, PerChannel, PerGroup, PerToken, Scheme
from quantaudit.identity.mismatches.protocol import About, Finding, Kind, Layer, Weight
from quantaudit.identity.mismatches.scoring import Variant, best
from quantaudit.identity.mismatches.weights import map_weights, with_values
from quantaudit.numerics.reference import dequantize, quantize

ABOUT = About(
    name="cut-groups",
    kind=Kind.SHARDING,
    field="granularity.shards",
    sentence="Groups are cut where the shards of the ranks meet.",
)
_RANKS = (2, 4, 8, 16)
_AXES = {-1: "columns", -2: "rows"}


def apply(layer: Layer) -> Layer | None:
    """Lets two ranks quantize half of the columns each, or half of the rows where columns change nothing."""
    return map_weights(layer, _halved)


def recognise(train: Layer, serve: Layer) -> Finding | None:
    """Finds masters that 2, 4, 8 or 16 ranks quantized each for itself."""
    return best(ABOUT, train, serve, _variants())


def quantize_in_shards(x: Tensor, scheme: Scheme, num_ranks: int, axis: int) -> Tensor:
    """Returns what ranks make of their parts of `x`, decoded to fp32.

    Args:
        x: [E, R, C] or [R, C].
        scheme: The quantizer of every rank; a last group may be smaller.
        num_ranks: Divides the axis.
        axis: -1 for columns, -2 for rows.
    """
    return torch.cat([_decoded(shard, scheme) for shard in x.chunk(num_ranks, axis)], axis)


def _variants() -> Iterator[Variant]:
    for axis, name in _AXES.items():
        for ranks in _RANKS:
            predict = partial(map_weights, change=partial(_sharded, num_ranks=ranks, axis=axis))
            served = f"groups of {ranks} shards of {name}"
            yield Variant("groups of the whole matrix", served, predict, is_by_rows=axis == -1)


def _halved(weight: Weight) -> Weight | None:
    for axis in _AXES:
        sharded = _sharded(weight, num_ranks=2, axis=axis)
        if sharded is not None and not torch.equal(sharded.values, weight.values):
            return sharded
    return None


def _sharded(weight: Weight, *, num_ranks: int, axis: int) -> Weight | None:
    if weight.quantized is None or weight.scheme is None or weight.master is None:
        return None
    length = weight.master.shape[axis]
    if length % num_ranks or not _cuts(weight.scheme, length // num_ranks, axis):
        return None
    return with_values(weight, quantize_in_shards(weight.master, weight.scheme, num_ranks, axis))


def _cuts(scheme: Scheme, part: int, axis: int) -> bool:
    """Says whether parts of that length along an axis end inside a group, or under a scale of the whole matrix."""
    grain = scheme.granularity
    if isinstance(scheme.scale, LinearScale) and scheme.scale.second_level is not None:
        return True
    if isinstance(grain, PerGroup):
        return axis == -1 and part % grain.size != 0
    if isinstance(grain, PerBlock):
        return part % (grain.cols if axis == -1 else grain.rows) != 0
    return axis == -1 or not isinstance(grain, PerChannel | PerToken)


def _decoded(shard: Tensor, scheme: Scheme) -> Tensor:
    width = shard.shape[-1]
    if isinstance(scheme.granularity, PerGroup):
        # Zeros fill the last group: they change no statistic.
        shard = torch.nn.functional.pad(shard, (0, -width % scheme.granularity.size))
    return dequantize(quantize(shard.contiguous(), scheme), torch.float32)[..., :width]
