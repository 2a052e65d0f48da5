"""Stored matrices as weights of a layer: decoded values, with codes and scales where a bundled scheme decodes alike.

How that scheme would encode does not matter: a mismatch that moves codes or scales only decodes.

Shape suffixes: E experts, R rows, C columns.
"""

from __future__ import annotations

import torch

from quantaudit.core.scheme import ExponentScale, Granularity, PerBlock, PerChannel, PerGroup, PerTensor, Scheme
from quantaudit.identity.layouts.logical import LogicalTensor
from quantaudit.identity.layouts.stored import Packing, Part, ScaleKind, StoredMatrix
from quantaudit.identity.mismatches.protocol import Weight
from quantaudit.numerics.catalogue import bundled_schemes
from quantaudit.numerics.reference import QuantizedTensor


def read_weight(tensor: LogicalTensor, numbers: list[int]) -> Weight:
    """Reads some matrices of a tensor, [E, R, C] of experts and [R, C] of a dense one; values in their own dtype."""
    stored = [tensor.matrices[number].read() for number in numbers]
    values = [one.values(slice(0, one.shape[0]), one.dtype or torch.float32) for one in stored]
    scheme = _scheme_of(stored)
    quantized = None if scheme is None else _quantized(stored, scheme, is_stack=tensor.is_stack)
    joined = torch.stack(values) if tensor.is_stack else values[0]
    return Weight(values=joined, quantized=quantized, slack=max(one.slack for one in stored))


def granularities_of(packing: Packing, shape: tuple[int, int]) -> list[Granularity]:
    """Lists the granularities that the tiles of a packed matrix may be."""
    tile = packing.tile_rows, packing.tile_cols
    found: list[Granularity] = []
    if tile[0] == 1:
        found.append(PerGroup(size=tile[1]))
    if tile == (1, shape[1]):
        found.append(PerChannel())
    if tile == shape:
        found.append(PerTensor())
    if tile[0] > 1:
        found.append(PerBlock(rows=tile[0], cols=tile[1]))
    return found


def _scheme_of(stored: list[StoredMatrix]) -> Scheme | None:
    """Returns a bundled scheme that decodes packed matrices of one packing as they do; `None` if there is none."""
    packing = stored[0].packing
    if packing is None or packing.scale is ScaleKind.E4M3 or any(one.packing != packing for one in stored):
        return None
    grains = granularities_of(packing, stored[0].shape)
    for scheme in bundled_schemes():
        is_power = isinstance(scheme.scale, ExponentScale)
        is_single = isinstance(scheme.scale, ExponentScale) or scheme.scale.second_level is None
        is_alike = scheme.element == packing.element and scheme.granularity in grains
        if is_alike and is_single and is_power == (packing.scale is ScaleKind.E8M0):
            return scheme
    return None


def _quantized(stored: list[StoredMatrix], scheme: Scheme, *, is_stack: bool) -> QuantizedTensor:
    is_power = isinstance(scheme.scale, ExponentScale)
    codes = [one.codes(slice(0, one.shape[0])) for one in stored]
    scales = [one.parts[Part.SCALES].view(torch.uint8) if is_power else one.scales() for one in stored]
    joined = torch.stack(codes) if is_stack else codes[0]
    return QuantizedTensor(
        codes=joined,
        scales=torch.stack(scales) if is_stack else scales[0],
        second_scales=None,
        offset=None,
        shape=tuple(joined.shape),
        dtype=torch.float32,
        scheme=scheme,
    )
