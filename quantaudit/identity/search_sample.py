"""What is searched: a served matrix and its master, cut into groups, and a few groups that stand for all of them.

A scale depends on the statistic of its group alone, and a code on its value and that scale. So some members of a group,
the largest among them, are quantized as they are in the whole group, and any granularity becomes one group a row. The
group with the absmax of the matrix is always drawn, which keeps the second level of two-level scales.

Shape suffixes: R rows, C columns, T tiles of the grid, G groups, N members; K groups drawn, M members drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.format import BF16, E4M3, E8M0, FP16, FP32, FloatFormat, Format
from quantaudit.core.scheme import Granularity, LinearScale, PerBlock, PerChannel, PerGroup, PerTensor, Scheme, TwoLevel
from quantaudit.identity.layouts.stored import Packing, Part, ScaleKind, StoredMatrix
from quantaudit.identity.sides import stored_numbers
from quantaudit.numerics.grouping import from_groups, plan, to_groups
from quantaudit.numerics.reference import QuantizedTensor, dequantize, quantize
from quantaudit.numerics.rounding import decode
from quantaudit.numerics.scales import matrix_scale

MAX_MEMBERS = 256
_FORMATS = {torch.float32: FP32, torch.bfloat16: BF16, torch.float16: FP16}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Served:
    """One matrix as the server holds it.

    Attributes:
        shape: [R, C].
        values_RC: Plain numbers, fp32, bf16 or fp16; `None` for codes.
        codes_RC: Codes; `None` for plain numbers.
        scales_TT: The stored scales as fp32 numbers, a global one left out.
        element: Format of the codes.
        granularity: Which values share a scale.
        container: Format in which scales are stored.
        has_global: Whether there is a scale above the scales.
        global_scale: What the scales are multiplied by; `None` without, or where it is not one number.
        slack: Relative difference of the global scale, and of what it decodes to, that is none: the file divides by it.
    """

    shape: tuple[int, int]
    values_RC: Tensor | None = None
    codes_RC: Tensor | None = None
    scales_TT: Tensor | None = None
    element: Format | None = None
    granularity: Granularity | None = None
    container: FloatFormat | None = None
    has_global: bool = False
    global_scale: float | None = None
    slack: float = 0.0

    @property
    def dtype(self) -> torch.dtype:
        """Returns the dtype in which decoded values are compared."""
        return torch.float32 if self.values_RC is None else self.values_RC.dtype


class Grouped(NamedTuple):
    """Master and served matrix in groups; what a side does not hold is `None`."""

    master_GN: Tensor
    values_GN: Tensor | None
    codes_GN: Tensor | None
    scales_G: Tensor | None
    absmax_G: Tensor


class Misses(NamedTuple):
    """How many values, scales and codes a scheme does not give."""

    values: int = 0
    scales: int = 0
    codes: int = 0


class Compared(NamedTuple):
    """What a scheme does not give, and the groups in which it does not give every value."""

    misses: Misses
    is_wrong_K: Tensor


def read_served(stored: StoredMatrix) -> Served:
    """Returns a stored matrix as it is searched."""
    rows = slice(0, stored.shape[0])
    packing = stored.packing
    if packing is None:
        return served_values(stored.parts[Part.NUMBERS])
    scales = stored.parts[Part.SCALES]
    if packing.scale is ScaleKind.E4M3:
        return Served(
            shape=stored.shape,
            codes_RC=stored.codes(rows),
            scales_TT=decode(scales, E4M3),
            element=packing.element,
            granularity=PerGroup(size=packing.tile_cols),
            container=E4M3,
            has_global=True,
            global_scale=_global_scale(stored.parts[Part.GLOBAL_SCALE], packing),
            slack=stored.slack,
        )
    is_power = packing.scale is ScaleKind.E8M0
    return Served(
        shape=stored.shape,
        codes_RC=stored.codes(rows),
        scales_TT=stored.scales(),
        element=packing.element,
        granularity=_granularity(stored.shape, packing),
        container=E8M0 if is_power else _FORMATS[scales.dtype],
    )


def served_values(values_RC: Tensor) -> Served:
    """Returns a matrix of plain numbers as it is searched."""
    return Served(shape=(values_RC.shape[0], values_RC.shape[1]), values_RC=values_RC)


def served_codes(quantized: QuantizedTensor) -> Served:
    """Returns a quantized matrix [R, C] as it is searched."""
    rule = quantized.scheme.scale
    two_level = isinstance(rule, LinearScale) and rule.second_level is not None
    above = quantized.second_scales
    return Served(
        shape=(quantized.shape[0], quantized.shape[1]),
        codes_RC=quantized.codes,
        scales_TT=stored_numbers(quantized),
        element=quantized.scheme.element,
        granularity=quantized.scheme.granularity,
        container=rule.format,
        has_global=two_level,
        global_scale=float(above) if above is not None and above.numel() == 1 and quantized.offset is None else None,
    )


def decode_served(served: Served) -> Tensor:
    """Returns the values of a served matrix, [R, C] fp32; those with a global scale to within that factor."""
    if served.values_RC is not None:
        return served.values_RC.float()
    assert served.codes_RC is not None and served.scales_TT is not None
    assert served.element is not None and served.granularity is not None
    cut = plan(served.shape, served.granularity)
    values_GN = decode(to_groups(served.codes_RC, cut)[0], served.element) * served.scales_TT.reshape(-1, 1)
    return from_groups(values_GN.unsqueeze(0), cut, served.shape)


def group(master: Tensor, served: Served, granularity: Granularity) -> Grouped:
    """Cuts both sides, [R, C], into groups."""
    cut = plan(served.shape, granularity)
    master_GN = to_groups(master, cut)[0]
    return Grouped(
        master_GN=master_GN,
        values_GN=None if served.values_RC is None else to_groups(served.values_RC, cut)[0],
        codes_GN=None if served.codes_RC is None else to_groups(served.codes_RC, cut)[0],
        scales_G=None if served.scales_TT is None else served.scales_TT.reshape(-1),
        absmax_G=master_GN.abs().amax(-1).float(),
    )


def choose_groups(absmax_G: Tensor, count: int) -> Tensor:
    """Returns the numbers of about `count` groups, ascending: the largest, the smallest, a zero one, and a spread."""
    num_groups = absmax_G.shape[0]
    spread = torch.linspace(0, num_groups - 1, min(count, num_groups)).long()
    nonzero = absmax_G > 0
    smallest = torch.where(nonzero, absmax_G, torch.inf).topk(min(4, num_groups), largest=False).indices
    zeros = (~nonzero).nonzero().flatten()[:2]
    chosen: Tensor = torch.cat([spread, absmax_G.argmax().reshape(1), smallest, zeros]).unique()
    return chosen


def draw(grouped: Grouped, groups_K: Tensor) -> Grouped:
    """Returns some groups; of long ones the largest member and a spread of the others, in their order."""
    master_KN = grouped.master_GN[groups_K]
    members_KM = _members(master_KN)

    def pick(x_GN: Tensor | None) -> Tensor | None:
        return None if x_GN is None else x_GN[groups_K].gather(1, members_KM)

    return Grouped(
        master_GN=master_KN.gather(1, members_KM),
        values_GN=pick(grouped.values_GN),
        codes_GN=pick(grouped.codes_GN),
        scales_G=None if grouped.scales_G is None else grouped.scales_G[groups_K],
        absmax_G=grouped.absmax_G[groups_K],
    )


def try_scheme(scheme: Scheme, sample: Grouped, served: Served) -> Compared:
    """Quantizes groups by a scheme, whatever its granularity, and compares.

    Args:
        scheme: The scheme.
        sample: Groups of one matrix; with a second level, all of them or those of `choose_groups`.
        served: The matrix, which gives the dtype in which plain values are compared, and the global scale.
    """
    as_rows = scheme.model_copy(update={"granularity": PerGroup(size=sample.master_GN.shape[1])})
    predicted = quantize(sample.master_GN, as_rows)
    if sample.values_GN is not None:
        is_wrong_KM = differs(dequantize(predicted, served.dtype), sample.values_GN)
        return Compared(Misses(values=int(is_wrong_KM.sum())), is_wrong_KM.any(-1))
    return _compare_codes(predicted, sample, served)


def global_ratio(master: Tensor, served: Served, scheme: Scheme) -> float:
    """Returns how many times the global scale of a scheme the stored one is; 1 where they are one, or there is none.

    Args:
        master: [R, C], fp32, bf16 or fp16.
        served: The same shape.
        scheme: The scheme, which decides how the global scale is computed.
    """
    rule, stored = scheme.scale, served.global_scale
    if stored is None or not isinstance(rule, LinearScale) or not isinstance(rule.second_level, TwoLevel):
        return 1.0
    wanted = float(matrix_scale(master.abs().amax().float().reshape(1, 1), rule.second_level))
    if _is_near(wanted, stored, served.slack):
        return 1.0
    return stored / wanted if wanted else float("inf")


def _compare_codes(predicted: QuantizedTensor, sample: Grouped, served: Served) -> Compared:
    """Compares scales and codes, and the values of groups in which one of them differs.

    A global scale that both sides share cancels. Where they do not share it, every value is compared.
    """
    assert sample.codes_GN is not None and sample.scales_G is not None
    numbers_K = stored_numbers(predicted).reshape(-1)
    is_scale_K = differs(numbers_K, sample.scales_G)
    is_code_KM = predicted.codes != sample.codes_GN
    is_wrong_K = is_scale_K | is_code_KM.any(-1)
    above = _other_globals(predicted, served)
    if above is not None:
        is_wrong_K = torch.ones_like(is_wrong_K)
    if not is_wrong_K.any():
        return Compared(Misses(), is_wrong_K)
    element = predicted.scheme.element
    wanted, stored = above or (1.0, 1.0)
    mine = decode(predicted.codes[is_wrong_K], element) * (numbers_K[is_wrong_K] * wanted).unsqueeze(-1)
    theirs = decode(sample.codes_GN[is_wrong_K], element) * (sample.scales_G[is_wrong_K] * stored).unsqueeze(-1)
    is_value = differs(mine, theirs)
    if above is not None and served.slack:
        is_value &= ~((mine - theirs).abs() <= served.slack * theirs.abs())
    num_scales = int(is_scale_K.sum()) + (above is not None)
    misses = Misses(int(is_value.sum()), num_scales, int(is_code_KM.sum()))
    is_wrong_K[is_wrong_K.clone()] = is_value.any(-1)
    return Compared(misses, is_wrong_K)


def differs(a: Tensor, b: Tensor) -> Tensor:
    """Returns where two tensors differ in value: +0 equals -0, and NaN equals NaN."""
    return (a != b) & ~(a.isnan() & b.isnan())


def _global_scale(stored: Tensor, packing: Packing) -> float:
    """Returns what scales are multiplied by; of a divisor its reciprocal, in double precision."""
    above = float(stored)
    if packing.multiplies_global:
        return above
    return 1.0 / above if above else float("inf")


def _other_globals(predicted: QuantizedTensor, served: Served) -> tuple[float, float] | None:
    """Returns the global scale that a scheme gives and the stored one; `None` where they are one, or there is none."""
    rule, stored = predicted.scheme.scale, served.global_scale
    if stored is None or not isinstance(rule, LinearScale) or not isinstance(rule.second_level, TwoLevel):
        return None
    assert predicted.second_scales is not None
    wanted = float(predicted.second_scales)
    return None if _is_near(wanted, stored, served.slack) else (wanted, stored)


def _is_near(wanted: float, stored: float, slack: float) -> bool:
    """Says whether two global scales are one; NaN is none."""
    return wanted == stored or abs(wanted - stored) <= slack * abs(stored) < float("inf")


def _members(master_KN: Tensor) -> Tensor:
    count, size = master_KN.shape
    if size <= MAX_MEMBERS:
        return torch.arange(size).expand(count, size)
    spread = torch.linspace(0, size - 1, MAX_MEMBERS - 1).long().expand(count, -1)
    largest = master_KN.abs().float().argmax(-1, keepdim=True)
    return torch.cat([spread, largest], dim=-1).sort(-1).values


def _granularity(shape: tuple[int, int], packing: Packing) -> Granularity:
    rows, cols = shape
    tile = packing.tile_rows, packing.tile_cols
    if tile[0] == 1:
        is_row = tile[1] >= cols and packing.scale is ScaleKind.FLOAT and packing.element.bits == 8
        return PerChannel() if is_row else PerGroup(size=tile[1])
    return PerTensor() if tile == (rows, cols) else PerBlock(rows=tile[0], cols=tile[1])
