"""INT4 with 32 or 128 values a scale, as trainers for reinforcement learning fake-quantize and pack it.

slime and Miles train with absmax / 7 and decode with that fp32 scale; their packer multiplies absmax by the fp32 number
1 / 7, divides by that, and stores it in the dtype of the weights, bf16, so 3.0 and 1.5 become the codes 7 4 in the
trainer and 7 3 in the server. SkyRL offers both divisors in use, with scales in the dtype of the weights.

The trainer's division is written with a Python number. A CPU divides, which is restated here; a GPU may multiply by the
reciprocal instead, which was not run. If it does, the codes there are those of the packer, and what is left is the bf16
of the stored scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from quantaudit.backends.conventions_restated import Convention, by_scheme, convention
from quantaudit.core.format import BF16
from quantaudit.core.scheme import Division, EncodeScale, Scheme
from quantaudit.numerics.catalogue import get_scheme
from quantaudit.numerics.reference import QuantizedTensor, quantize

GROUP_SIZES = (32, 128)
_FLOOR = 1e-5
_SLIME_FLOOR = f"A scale below {_FLOOR:g} is raised to it, so groups with absmax under about {7 * _FLOOR:g} lose codes."


def int4_conventions() -> Iterator[Convention]:
    """Yields the INT4 rules, group size by group size."""
    for size in GROUP_SIZES:
        yield _slime_train(size)
        yield _slime_pack(size)
        yield _skyrl(size, "7", "-narrow", "(7, -7), that of Kimi and Miles")
        yield _skyrl(size, "7.5", "", "(7.5, -8), that of llm-compressor")


def _slime_train(size: int) -> Convention:
    catalogue = f"int4-g{size}-div7-narrow"
    return convention(
        f"slime-int4-g{size}-train",
        catalogue,
        by_scheme(_with_scale(catalogue, scale_floor=_FLOOR)),
        departs=(_SLIME_FLOOR,),
        source="slime and Miles, the fake quantizer patched into Megatron's grouped linear layer",
    )


def _slime_pack(size: int) -> Convention:
    catalogue = f"int4-g{size}-div7-narrow"
    rule = _with_scale(
        catalogue,
        division=Division.RECIPROCAL,
        scale_floor=_FLOOR,
        encode_with=EncodeScale.COMPUTED,
    )
    return convention(
        f"slime-int4-g{size}-pack",
        catalogue,
        _stored_as_weights(rule),
        departs=(
            "The scale is absmax times the fp32 number 1/7: ratios that are ties under division may not be.",
            "The stored scale is rounded to the dtype of the weights after the elements were divided by the fp32 one.",
            _SLIME_FLOOR,
        ),
        source="slime and Miles, the int4 kernel and packer of the export to compressed-tensors",
    )


def _skyrl(size: int, divisor: str, suffix: str, convention_name: str) -> Convention:
    catalogue = f"int4-g{size}-div{divisor}{suffix}-native"
    return convention(
        f"skyrl-int4-g{size}-div{divisor}",
        catalogue,
        by_scheme(get_scheme(catalogue)),
        source=f"SkyRL, the convention {convention_name}, with scales in the dtype of the weights",
    )


def _stored_as_weights(scheme: Scheme) -> Callable[[Tensor], QuantizedTensor]:
    """Returns the rule of a scheme whose scales are stored in the dtype of the weights."""
    narrow = _changed(scheme, format=BF16)
    return lambda x: quantize(x, narrow if x.dtype == torch.bfloat16 else scheme)


def _with_scale(name: str, **fields: object) -> Scheme:
    return _changed(get_scheme(name), **fields)


def _changed(scheme: Scheme, **fields: object) -> Scheme:
    return scheme.model_copy(update={"scale": scheme.scale.model_copy(update=fields)})
