"""Experts are served in another order, with all that belongs to them, or their scales are moved without their codes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from quantaudit.identity.mismatches.protocol import About, Finding, Kind, Layer, Weight
from quantaudit.identity.mismatches.scoring import Variant, best
from quantaudit.identity.mismatches.weights import map_weights, with_quantized, with_values

ABOUT = About(
    name="permuted-experts",
    kind=Kind.SHARDING,
    field="experts.order",
    sentence="Experts stand in the place of others.",
)
IN_PLACE, WITH_CODES = "0 1 2 ...", "scales with their codes"
_LISTED = 4  # experts that a description names


def apply(layer: Layer) -> Layer | None:
    """Moves every expert one place on, the last to the front."""
    return map_weights(layer, _rotated)


def recognise(train: Layer, serve: Layer) -> Finding | None:
    """Finds the trainer's experts in other places, or its scales with the codes where they were."""
    found = best(ABOUT, train, serve, _variants(train, serve))
    return None if found is None else replace(found, predict=None)  # the order is that of these experts


def _variants(train: Layer, serve: Layer) -> Iterator[Variant]:
    order: dict[int, int] = {}
    moved, rescaled = dict(train), dict(train)
    for name in train.keys() & serve.keys():
        found = _order(train[name].values, serve[name].values)
        moved[name] = _taken(train[name], found)
        order |= {place: expert for place, expert in enumerate(found) if place != expert}
    yield Variant(IN_PLACE, describe_order(order), lambda _: moved if order else None)
    scales: dict[int, int] = {}
    for name in train.keys() & serve.keys():
        trained, served = train[name].quantized, serve[name].quantized
        if trained is None or served is None:
            continue
        found = _order(trained.scales, served.scales)
        if not found:  # one matrix, or grids of other shapes
            continue
        rescaled[name] = with_quantized(train[name], replace(trained, scales=_at(trained.scales, found)))
        scales |= {place: expert for place, expert in enumerate(found) if place != expert}
    yield Variant(WITH_CODES, describe_scales(scales), lambda _: rescaled if scales else None)


def _rotated(weight: Weight) -> Weight | None:
    if weight.values.dim() < 3 or weight.values.shape[0] < 2:
        return None
    count = weight.values.shape[0]
    return _taken(weight, [(place - 1) % count for place in range(count)])


def _taken(weight: Weight, order: list[int]) -> Weight:
    """Returns the weight with expert order[i] in place i."""
    stored = weight.quantized
    if not order:
        return weight
    if stored is None:
        return with_values(weight, _at(weight.values, order))
    moved = replace(
        stored,
        codes=_at(stored.codes, order),
        scales=_at(stored.scales, order),
        second_scales=None if stored.second_scales is None else _at(stored.second_scales, order),
        offset=None if stored.offset is None else _at(stored.offset, order),
    )
    return with_quantized(weight, moved)


def _order(train: Tensor, serve: Tensor) -> list[int]:
    """Returns which of the trainer's experts stands in every place; its own where none is found there.

    Of equal experts the one in its own place comes first. Empty where there is one expert, or shapes differ.
    """
    if train.dim() < 3 or train.shape != serve.shape:
        return []
    dtype = torch.bfloat16 if torch.bfloat16 in (train.dtype, serve.dtype) else serve.dtype
    known = _digests(train, dtype)
    places: dict[bytes, list[int]] = {}
    for expert, digest in enumerate(known):
        places.setdefault(digest, []).append(expert)
    found = []
    for place, digest in enumerate(_digests(serve, dtype)):
        experts = places.get(digest, [place])
        found.append(place if place in experts else experts[0])
    return found


def _digests(x: Tensor, dtype: torch.dtype) -> list[bytes]:
    """Returns a digest of every expert's numbers, -0 taken for +0."""
    numbers = x.to(dtype) + 0 if x.dtype.is_floating_point else x
    return [hashlib.sha256(expert.contiguous().view(torch.uint8).cpu().numpy()).digest() for expert in numbers]


def _at(x: Tensor, order: list[int]) -> Tensor:
    return x[torch.tensor(order, device=x.device)]


def describe_order(order: Mapping[int, int]) -> str:
    """Puts into words which expert stands in which place."""
    shown = [f"{place} holds {expert}" for place, expert in sorted(order.items())[:_LISTED]]
    more = len(order) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def describe_scales(order: Mapping[int, int]) -> str:
    """Puts into words whose scales stand in which place."""
    return f"scales moved: {describe_order(order)}"
