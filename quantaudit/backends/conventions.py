"""Rules of public trainers and engines whose kernels need a GPU, restated from their description and run here.

Nothing of theirs is run: the origin is `restated` wherever a result of this backend is shown, and it stands for no
library. One file a family: `conventions_int4`, `conventions_fp8`, `conventions_mx`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from quantaudit import __version__
from quantaudit.backends.conventions_fp8 import fp8_conventions
from quantaudit.backends.conventions_int4 import int4_conventions
from quantaudit.backends.conventions_mx import mx_conventions
from quantaudit.backends.conventions_restated import Convention
from quantaudit.backends.protocol import Offer, Origin
from quantaudit.core.errors import InputError
from quantaudit.numerics.reference import QuantizedTensor, dequantize


@final
@dataclass(kw_only=True, eq=False)
class ConventionsBackend:
    """The restated rules as a backend; see `protocol.Backend`."""

    name: str = "conventions"
    origin: Origin = Origin.RESTATED

    @property
    def version(self) -> str:
        """Version of this package: nothing else is run."""
        return __version__

    def schemes(self) -> Mapping[str, Offer]:
        """Returns the offers by name."""
        return {name: convention.offer for name, convention in self._conventions.items()}

    def quantize(self, weight: Tensor, scheme: str) -> QuantizedTensor:
        """Quantizes by a restated rule.

        Args:
            weight: [R, C] or [E, R, C], fp32 or bf16.
            scheme: A name from `schemes`.

        Raises:
            InputError: If the rule or dtype is not offered, or the shape cannot be quantized.
        """
        found = self._find(scheme)
        _check(weight, f"{self.name}:{scheme}")
        with torch.no_grad():
            return found.quantize(weight.detach().contiguous())

    def dequantize(self, quantized: QuantizedTensor) -> Tensor:
        """Returns code times scale in fp32, rounded once to the dtype of the weight."""
        return dequantize(quantized)

    def _find(self, name: str) -> Convention:
        if name in self._conventions:
            return self._conventions[name]
        near = difflib.get_close_matches(name, self._conventions, n=3, cutoff=0.5)
        raise InputError(
            f"the quantizer {self.name}:{name}",
            expected=f"one of the {len(self._conventions)} that it offers",
            fix=f"did you mean {', '.join(near)}?" if near else "see `quantaudit list backends`",
        )

    @cached_property
    def _conventions(self) -> dict[str, Convention]:
        every = (*mx_conventions(), *int4_conventions(), *fp8_conventions())
        return {convention.offer.name: convention for convention in every}


def _check(weight: Tensor, what: str) -> None:
    if weight.dtype not in (torch.float32, torch.bfloat16):
        raise InputError(f"a weight of {weight.dtype} for {what}", expected="float32 or bfloat16", fix="cast it first")
    if weight.dim() not in (2, 3) or weight.numel() == 0:
        raise InputError(
            f"a weight of shape {list(weight.shape)} for {what}",
            expected="a matrix [rows, columns] or a stack [experts, rows, columns], not empty",
            fix="reshape it, or leave it out",
        )


BACKEND = ConventionsBackend()
