"""Mismatches that need a loop: what was left behind by an earlier step, moved, or made by another rule than agreed.

Each recogniser predicts what the later side would hold if its mismatch had happened, and is scored like those of
`identity.mismatches`: by the share of the differing values that the prediction gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.scheme import LinearScale, Scheme, TwoLevel
from quantaudit.core.step_log import Side
from quantaudit.engines.stored import StoredTensor, restore
from quantaudit.identity.mismatches import permuted_experts
from quantaudit.identity.mismatches.protocol import About, Finding, Kind, Layer, Projection, Weight
from quantaudit.identity.mismatches.sampling import quantizes_by_rows
from quantaudit.identity.mismatches.scoring import Variant, best
from quantaudit.identity.mismatches.weights import map_weights, requantized, with_quantized, with_values
from quantaudit.identity.rule import explain
from quantaudit.numerics import get_scheme, quantize, scheme_names
from quantaudit.training.checking.evidence import Evidence
from quantaudit.training.checking.global_scale import quantize_under
from quantaudit.training.checking.sides import Shipped, decode_shipped

Recogniser: TypeAlias = Callable[[Evidence], Finding | None]

ANOTHER_RULE = About(
    name="another-rule",
    kind=Kind.SCALE_RULE,
    field="scheme",
    sentence="The served copy is quantized by another scheme than the trainer's.",
)
FP32_MASTERS = About(
    name="fp32-masters",
    kind=Kind.ARITHMETIC,
    field="source.dtype",
    sentence="The served copy is quantized from the fp32 masters, where the trainer quantizes their export.",
)
FROZEN_GLOBAL_SCALE = About(
    name="frozen-global-scale",
    kind=Kind.STALE,
    field="scale.second_level",
    sentence="The scale of the whole matrix is that of the first step.",
)
NOT_SYNCED = About(
    name="tensor-not-synced",
    kind=Kind.STALE,
    field="sync.tensors",
    sentence="A weight was left out of the sync and is still the one of an earlier update.",
)
PREVIOUS_STEP = About(
    name="previous-step",
    kind=Kind.STALE,
    field="sync.version",
    sentence="The engine holds the weights of an earlier update in full.",
)
SCALES_NOT_REFRESHED = About(
    name="scales-not-refreshed",
    kind=Kind.STALE,
    field="sync.scales",
    sentence="New codes are decoded with the scales of an earlier update.",
)
LAYOUT_NOT_REBUILT = About(
    name="layout-not-rebuilt",
    kind=Kind.STALE,
    field="post_load.rebuild",
    sentence="The kernel's layout was not built again after the load and holds an earlier update.",
)
PLACEMENT = About(
    name="placement-change",
    kind=Kind.SHARDING,
    field="experts.placement",
    sentence="Experts are looked for where others lie.",
)
ALL_ABOUT = (
    ANOTHER_RULE,
    FP32_MASTERS,
    FROZEN_GLOBAL_SCALE,
    NOT_SYNCED,
    PREVIOUS_STEP,
    SCALES_NOT_REFRESHED,
    LAYOUT_NOT_REBUILT,
    PLACEMENT,
)
_KIND_OF_FIELD = {
    "tie": Kind.TIES,
    "code_range": Kind.RANGE,
    "granularity": Kind.RANGE,
    "division": Kind.ARITHMETIC,
    "arithmetic": Kind.ARITHMETIC,
    "overflow": Kind.FP8_FLAVOUR,
}


def recognisers_for(leg: tuple[Side, Side]) -> tuple[Recogniser, ...]:
    """Returns the recognisers that make sense between two sides, the most direct first."""
    if leg[0] is Side.TRAINER:
        made = (find_fp32_masters, find_global_scale, find_another_rule)
        return made if leg[1] is Side.SENT else (find_stale, find_scales, *made)
    return (find_stale, find_scales, find_placement) if leg[1] is Side.DERIVED else (find_stale, find_scales)


def find_fp32_masters(evidence: Evidence) -> Finding | None:
    """Finds the masters as the trainer holds them, quantized without the export in between."""
    if all(weight.master.dtype == weight.source.dtype for weight in evidence.trained.values()):
        return None
    masters = {projection: weight.master for projection, weight in evidence.trained.items()}
    exported = next(iter(evidence.trained.values())).source.dtype
    train, serve = (str(t).removeprefix("torch.") for t in (exported, next(iter(masters.values())).dtype))
    predict = partial(_quantized_from, sources=masters)
    return best(FP32_MASTERS, evidence.train, evidence.serve, [Variant(train, serve, predict, is_by_rows=True)])


def find_global_scale(evidence: Evidence) -> Finding | None:
    """Finds the masters quantized under the scale that the whole matrix had at the first step."""
    first = evidence.first
    if first is None:
        return None
    shipped = {p: first.shipped[name] for p, name in evidence.names.items() if name in first.shipped}
    seconds = {p: w.second_scales for p, w in shipped.items() if isinstance(w, StoredTensor)}
    variant = Variant("absmax of this step", f"absmax of step {first.step}", partial(_under, seconds=seconds))
    return best(FROZEN_GLOBAL_SCALE, evidence.train, evidence.serve, [variant])


def find_another_rule(evidence: Evidence) -> Finding | None:
    """Finds a scheme of the catalogue that gives what is served from what the trainer quantizes."""
    schemes = [weight.scheme for weight in evidence.train.values() if weight.scheme is not None]
    if not schemes:
        return None
    found = best(ANOTHER_RULE, evidence.train, evidence.serve, _other_rules(schemes[0], evidence.serve))
    if found is None:
        return None
    differences = explain(schemes[0], get_scheme(found.serve), None)
    fields = [difference.field for difference in differences]
    root = fields[0].split(".")[0] if fields else ""
    about = replace(
        found.about, field=fields[0] if fields else "scheme", kind=_KIND_OF_FIELD.get(root, Kind.SCALE_RULE)
    )
    return replace(found, about=about)


def find_stale(evidence: Evidence) -> Finding | None:
    """Finds what was shipped earlier: one tensor, all of them, or the layout that was made of it."""
    about = NOT_SYNCED
    if evidence.leg[1] is Side.DERIVED:
        about = LAYOUT_NOT_REBUILT
    elif evidence.is_everything:
        about = PREVIOUS_STEP
    variants = [
        Variant("the last update", _ago(age), partial(_replaced, shipped=evidence.earlier_shipped(age)))
        for age in range(1, len(evidence.past) + 1)
    ]
    return best(about, evidence.train, evidence.serve, variants)


def find_scales(evidence: Evidence) -> Finding | None:
    """Finds the codes of this update under the scales of an earlier one, or its scales over earlier codes."""
    variants = []
    for age in range(1, len(evidence.past) + 1):
        earlier = evidence.earlier_shipped(age)
        scales = partial(_mixed, shipped=earlier, takes_scales=True)
        codes = partial(_mixed, shipped=earlier, takes_scales=False)
        variants.append(Variant("scales of the last update", f"scales of {_ago(age)}", scales))
        variants.append(Variant("codes of the last update", f"codes of {_ago(age)}", codes))
    return best(SCALES_NOT_REFRESHED, evidence.train, evidence.serve, variants)


def find_placement(evidence: Evidence) -> Finding | None:
    """Finds whole experts in the places of others, in what the engine looks up."""
    found = permuted_experts.recognise(evidence.train, evidence.serve)
    return None if found is None else replace(found, about=PLACEMENT)


def _ago(age: int) -> str:
    return "the update before" if age == 1 else f"{age} updates before"


def _quantized_from(layer: Layer, *, sources: dict[Projection, Tensor]) -> Layer | None:
    changed = {p: requantized(weight, sources[p]) for p, weight in layer.items() if weight.quantized is not None}
    return {p: changed.get(p) or weight for p, weight in layer.items()} if any(changed.values()) else None


def _under(layer: Layer, *, seconds: dict[Projection, Tensor | None]) -> Layer | None:
    changed: dict[Projection, Weight] = {}
    for projection, weight in layer.items():
        second = seconds.get(projection)
        if second is not None and weight.scheme is not None and weight.master is not None and _is_two_level(weight):
            changed[projection] = with_quantized(weight, quantize_under(weight.master, weight.scheme, second))
    return {**layer, **changed} if changed else None


def _is_two_level(weight: Weight) -> bool:
    rule = weight.scheme.scale if weight.scheme is not None else None
    return isinstance(rule, LinearScale) and isinstance(rule.second_level, TwoLevel)


def _other_rules(train: Scheme, serve: Layer) -> Iterator[Variant]:
    """Yields the catalogue: the schemes that the served codes say they are in first, then those of the same format."""
    held = {weight.quantized.scheme.name for weight in serve.values() if weight.quantized is not None}
    names = sorted(scheme_names(), key=lambda name: (name not in held, get_scheme(name).element != train.element))
    for name in names:
        scheme = get_scheme(name)
        if scheme.arithmetic_digest != train.arithmetic_digest:
            predict = partial(map_weights, change=partial(_by_scheme, scheme=scheme))
            yield Variant(train.name, name, predict, is_by_rows=quantizes_by_rows(scheme))


def _by_scheme(weight: Weight, *, scheme: Scheme) -> Weight | None:
    if weight.scheme is None or weight.master is None:
        return None
    try:
        return with_quantized(weight, quantize(weight.master, scheme))
    except InputError:  # its groups do not divide the shape
        return None


def _replaced(layer: Layer, *, shipped: dict[Projection, Shipped]) -> Layer | None:
    same = {p: w for p, w in shipped.items() if p in layer and tuple(w.shape) == tuple(layer[p].values.shape)}
    return {**layer, **{p: with_values(layer[p], decode_shipped(w)) for p, w in same.items()}} if same else None


def _mixed(layer: Layer, *, shipped: dict[Projection, Shipped], takes_scales: bool) -> Layer | None:
    changed: dict[Projection, Weight] = {}
    for projection, weight in layer.items():
        earlier = shipped.get(projection)
        now = weight.quantized
        if now is None or not isinstance(earlier, StoredTensor) or earlier.scheme != now.scheme:
            continue
        before = restore(earlier)
        codes, above = (now, before) if takes_scales else (before, now)
        mixed = replace(
            codes, scales=above.scales, second_scales=above.second_scales, offset=above.offset, dtype=now.dtype
        )
        if torch.equal(mixed.codes, now.codes) and takes_scales and torch.equal(mixed.scales, now.scales):
            continue
        changed[projection] = with_quantized(weight, mixed)
    return {**layer, **changed} if changed else None
