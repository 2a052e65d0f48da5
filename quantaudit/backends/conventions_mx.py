"""MXFP4 as other public code computes it: the rules of triton_kernels, quark, microxcaling and auto-round.

microxcaling and auto-round take exponents from a float32 logarithm and round by adding one half in fp32:

    X = floor(log2 absmax) - 2,    code from  floor(2 |y| / 2^e + 1/2),    e = max(0, floor(log2 |y|)),  y = x / 2^X,

which errs just below a power of two and just below one quarter. Where a description says nothing of zero, subnormal,
infinite or NaN blocks, they follow the catalogue.

Shape suffixes: S stack, G groups, N members of a group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from quantaudit.backends.conventions_restated import Convention, by_scheme, convention
from quantaudit.core.format import E2M1, E8M0
from quantaudit.numerics.bits import decode_e8m0, power_of_two
from quantaudit.numerics.catalogue import get_scheme
from quantaudit.numerics.grouping import from_groups, plan, to_groups
from quantaudit.numerics.reference import QuantizedTensor, quantize

_NO_SPECIAL = "; special blocks as in the catalogue, the description leaves them open"
_LOG2 = "An absmax some ulps below a power of two takes that power's exponent: the logarithm is float32."
_HALF = "A ratio one ulp below .25 becomes .5: one half is added in fp32."
_SIGN = "A ratio of -0 becomes +0."
_ZERO_126 = "The scale of a block of zeros is stored as 126."
_SHARED_BIAS = 2  # floor(log2 6)


def mx_conventions() -> Iterator[Convention]:
    """Yields the MXFP4 rules."""
    yield _same("ocp-mxfp4", "mxfp4-floor", "OCP Microscaling Formats (MX) v1.0, section 6.3")
    yield _same("triton-mxfp4-up", "mxfp4-rceil", "triton_kernels, ROUND_UP" + _NO_SPECIAL)
    yield _same("triton-mxfp4-down", "mxfp4-floor", "triton_kernels, ROUND_DOWN" + _NO_SPECIAL)
    yield _same("triton-old-mxfp4-up", "mxfp4-rceil-away", "triton_kernels before ties to even, ROUND_UP" + _NO_SPECIAL)
    old_down = "triton_kernels before ties to even, ROUND_DOWN" + _NO_SPECIAL
    yield _same("triton-old-mxfp4-down", "mxfp4-floor-away", old_down)
    yield _same("quark-mxfp4-even", "mxfp4-even-away", "quark, EVEN" + _NO_SPECIAL)
    yield convention(
        "transformers-mxfp4",
        "mxfp4-rceil",
        _cast_first,
        departs=("fp32: weights are rounded to bf16 first.",),
        source="transformers quantize_to_mxfp4: a cast to bf16, then triton_kernels, ROUND_UP" + _NO_SPECIAL,
    )
    departs = (_LOG2, _HALF, _SIGN)
    for name, is_even, catalogue in (("nearest", False, "mxfp4-floor-away"), ("even", True, "mxfp4-floor")):
        yield convention(
            f"microxcaling-mxfp4-{name}",
            catalogue,
            partial(_by_logarithm, is_even=is_even, zero_code=0),
            departs=departs,
            source=f"microxcaling, round={name!r}",
        )
    yield convention(
        "autoround-mxfp4",
        "mxfp4-floor",
        partial(_by_logarithm, is_even=True, zero_code=126),
        departs=(*departs, _ZERO_126),
        source="auto-round, MXFP4",
    )


def _same(name: str, catalogue: str, source: str) -> Convention:
    return convention(name, catalogue, by_scheme(get_scheme(catalogue)), source=source)


def _cast_first(x: Tensor) -> QuantizedTensor:
    return replace(quantize(x.bfloat16(), get_scheme("mxfp4-rceil")), dtype=x.dtype)


def _by_logarithm(x: Tensor, *, is_even: bool, zero_code: int) -> QuantizedTensor:
    scheme = get_scheme("mxfp4-floor")
    shape = tuple(x.shape)
    cut = plan(shape, scheme.granularity)
    groups_SGN = to_groups(x.float(), cut)
    absmax_SG = groups_SGN.abs().amax(-1)
    is_finite_SG = absmax_SG.isfinite()
    exponent_SG = torch.where(is_finite_SG, _exponent(absmax_SG) - _SHARED_BIAS, 0)
    byte_SG = (exponent_SG + E8M0.bias).clamp(0, E8M0.max_code)
    byte_SG = torch.where(absmax_SG == 0, zero_code, byte_SG)
    ratio_SGN = torch.where(is_finite_SG.unsqueeze(-1), groups_SGN / decode_e8m0(byte_SG).unsqueeze(-1), 0.0)
    return QuantizedTensor(
        codes=from_groups(_round(ratio_SGN, is_even=is_even), cut, shape),
        scales=torch.where(is_finite_SG, byte_SG, E8M0.nan_code or 0).to(torch.uint8).reshape(cut.grid),
        second_scales=None,
        offset=None,
        shape=shape,
        dtype=x.dtype,
        scheme=scheme,
    )


def _exponent(magnitude: Tensor) -> Tensor:
    """Returns floor(log2(.)) by a float32 logarithm, int32; zero counts as the smallest normal number."""
    smallest = torch.finfo(torch.float32).tiny
    return torch.where(magnitude == 0, smallest, magnitude).log2().floor().to(torch.int32)


def _round(ratio_SGN: Tensor, *, is_even: bool) -> Tensor:
    """Rounds ratios to E2M1 codes by adding one half; the sign of zero ratios is lost."""
    magnitude_SGN = ratio_SGN.abs().clamp(max=2.0 * E2M1.max)
    exponent_SGN = _exponent(magnitude_SGN).clamp(min=0)
    steps_SGN = magnitude_SGN * power_of_two(1 - exponent_SGN)
    whole_SGN = (steps_SGN + 0.5).floor()
    if is_even:
        whole_SGN = whole_SGN - ((steps_SGN - 0.5) % 2 == 0).float()
    code_SGN = (whole_SGN.to(torch.int32) + 2 * exponent_SGN).clamp(max=E2M1.max_code)
    return (code_SGN + E2M1.sign_code * (ratio_SGN < 0)).to(torch.uint8)
