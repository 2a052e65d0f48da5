"""The structural mismatches of `identity.mismatches`, done to layers as they are exported.

What a mismatch leaves without codes is stored again where that gives the same values, and shipped as plain values where
no codes of the scheme give them.

Legend: E experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.scheme import Scheme
from quantaudit.core.step_log import FindingKind
from quantaudit.engines.stored import StoredTensor, restore, store
from quantaudit.identity.mismatches.protocol import Layer, Mismatch, Projection, Weight
from quantaudit.identity.mismatches.registry import MISMATCHES
from quantaudit.numerics import dequantize, quantize
from quantaudit.training.checking.evidence import group_layers
from quantaudit.training.checking.injections.points import InjectionAbout, Moment, Options, Plan, Points
from quantaudit.training.checking.sides import Shipped, decode_shipped
from quantaudit.training.rl.faults import Packed
from quantaudit.training.run_state import Note

# Mismatches between experts have no meaning for some of them only.
_WHOLE = frozenset({"permuted-experts", "skipped-layer", "included-layer", "transposed-weights"})
_SHIPPED_PLAIN = frozenset({"skipped-layer"})
_MEMORY = 3
_OPTIONS = {
    "tensor": "pattern over module names; every layer with a match is touched (default: one layer)",
    "experts": "how many experts of a layer are touched (default: all)",
}


class _Exporter:
    """Applies one mismatch to the layers it was aimed at, and remembers what was quantized before."""

    def __init__(self, mismatch: Mismatch, options: Options) -> None:
        self._mismatch = mismatch
        self._options = options
        self._count = int(options.text("experts", "0")) if options.text("experts", "0").isdecimal() else -1
        if self._count < 0 or (self._count and mismatch.ABOUT.name in _WHOLE):
            raise options.wrong("experts", "a number of experts, for a mismatch that can touch some of them only")

    def __call__(self, moment: Moment, packed: Packed, exported: Mapping[str, Tensor]) -> Packed:
        """Returns the packed weights with the mismatch in them."""
        changed = dict(packed)
        if moment.is_active:
            groups = group_layers(tuple(packed))
            for layer in self._options.kept.choose("layers", lambda: self._aim(groups, packed, exported)):
                changed |= self._touched(groups[layer], packed, exported)
        self._options.kept.push(Note({}, {name: master.clone() for name, master in exported.items()}), _MEMORY)
        return changed

    def _aim(
        self, groups: Mapping[str, Mapping[Projection, str]], packed: Packed, exported: Mapping[str, Tensor]
    ) -> tuple[str, ...]:
        """Returns the layers that are touched: those with a matching weight, or one of those where it can happen."""
        if "tensor" in self._options.request.options:
            names = set(self._options.select(packed, one=True))
            aimed = tuple(layer for layer, parts in groups.items() if names & set(parts.values()))
        else:
            aimed = tuple(sorted(groups))
        able = [layer for layer in aimed if self._apply(groups[layer], packed, exported) is not None]
        if not able:
            raise InputError(
                f"--inject {self._options.request.in_words()}",
                expected="weights to which this can happen (another format, shape or rule)",
                fix="choose another mismatch for this recipe, or another step: nothing is stale at the first",
            )
        return tuple(able) if "tensor" in self._options.request.options else (self._options.draw(able),)

    def _apply(self, parts: Mapping[Projection, str], packed: Packed, exported: Mapping[str, Tensor]) -> Layer | None:
        usual = next((w.scheme for w in packed.values() if isinstance(w, StoredTensor)), None)
        layer = {p: self._weight(name, packed[name], exported[name], usual) for p, name in parts.items()}
        return self._mismatch.apply(layer)

    def _weight(self, name: str, shipped: Shipped, master: Tensor, usual: Scheme | None) -> Weight:
        stored = isinstance(shipped, StoredTensor)
        return Weight(
            values=decode_shipped(shipped),
            quantized=restore(shipped) if isinstance(shipped, StoredTensor) else None,
            scheme=shipped.scheme if stored and isinstance(shipped, StoredTensor) else usual,
            master=master,
            earlier=tuple(old.tensors[name] for old in self._options.kept.late if name in old.tensors),
        )

    def _touched(
        self, parts: Mapping[Projection, str], packed: Packed, exported: Mapping[str, Tensor]
    ) -> dict[str, Shipped]:
        layer = self._apply(parts, packed, exported)
        if layer is None:
            return {}
        is_plain = self._mismatch.ABOUT.name in _SHIPPED_PLAIN
        touched: dict[str, Shipped] = {}
        for projection, name in parts.items():
            whole = _ship(layer[projection], is_plain=is_plain)
            touched[name] = _first_experts(packed[name], whole, self._count) if self._count else whole
        return touched


def _ship(weight: Weight, *, is_plain: bool) -> Shipped:
    """Returns a weight as codes, or as values where there are none that give it."""
    if weight.quantized is not None:
        return store(replace(weight.quantized, dtype=torch.float32))
    if weight.scheme is None or is_plain:
        return weight.values
    try:
        codes = quantize(weight.values.float(), weight.scheme)
    except InputError:  # its groups do not divide the shape
        return weight.values
    same = torch.equal(dequantize(codes, weight.values.dtype), weight.values)
    return store(codes) if same else weight.values


def _first_experts(honest: Shipped, touched: Shipped, count: int) -> Shipped:
    """Returns a weight of which the first experts are touched."""
    if isinstance(honest, StoredTensor) and isinstance(touched, StoredTensor) and honest.scheme == touched.scheme:
        join = partial(_joined, count=count)
        scales = join(touched.scales, honest.scales)
        packed = join(touched.packed, honest.packed)
        assert scales is not None and packed is not None
        return replace(
            honest,
            packed=packed,
            scales=scales,
            second_scales=join(touched.second_scales, honest.second_scales),
            offset=join(touched.offset, honest.offset),
        )
    return torch.cat((decode_shipped(touched)[:count], decode_shipped(honest)[count:]))


def _joined(touched: Tensor | None, honest: Tensor | None, *, count: int) -> Tensor | None:
    return None if touched is None or honest is None else torch.cat((touched[:count], honest[count:]))


def _plan(mismatch: Mismatch) -> Plan:
    about = InjectionAbout(
        name=mismatch.ABOUT.name,
        kind=FindingKind.STATE,
        sentence=mismatch.ABOUT.sentence,
        found_as=(mismatch.ABOUT.name,),
        options=_OPTIONS,
    )
    return Plan(about=about, plant=lambda options: Points(export=_Exporter(mismatch, options)))


PLANS = tuple(_plan(mismatch) for mismatch in MISMATCHES)
