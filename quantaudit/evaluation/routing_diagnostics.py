"""How routing moved: who computes, from which depth, at what margin, with what weight, and how the load is spread.

A flip matters only if the experts it chooses between compute something different. Where tokens change experts and
neither the hidden states nor the distributions leave their floor, a note says so: that is what experts look like that
are copies of each other, as after an upcycle whose symmetry training never broke.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.diagnostic import Diagnostic, Series, Topic
from quantaudit.evaluation.shown import Shown, bin_labels, diagnostic
from quantaudit.observers.routing_sums import (
    MARGIN_EDGES,
    RoutingLog,
    exact_set_rate,
    flips_by_margin,
    mean_drift,
)
from quantaudit.observers.sums import LayerSums, hidden_error, load_variation
from quantaudit.stats import FLOOR_FACTOR

NO_EFFECT = "routing flips without output effect: the experts it chooses between compute the same"

# 64 unit roundoffs of fp32: another order of a few sums, whatever the floor happens to show.
_ROUNDING = 2.0**-18


class Effect(NamedTuple):
    """What flips could have changed, against hi itself.

    Attributes:
        hidden: Largest relative error of the residual over the layers.
        hidden_floor: Same of hi against itself.
        kl: Mean KL(hi || lo), nats a token.
        kl_floor: Same of hi against itself.
    """

    hidden: float
    hidden_floor: float
    kl: float
    kl_floor: float


def has_effect(effect: Effect) -> bool:
    """Tells whether hidden states or distributions leave their floor; KL grows with the square of the error."""
    hidden = max(FLOOR_FACTOR * effect.hidden_floor, _ROUNDING)
    kl = max(FLOOR_FACTOR**2 * effect.kl_floor, _ROUNDING**2)
    return not (effect.hidden <= hidden and effect.kl <= kl)


def worst_error(sums: LayerSums) -> float:
    """Returns the largest relative error of the residual over the layers."""
    return max(hidden_error(sums.hidden).values(), default=0.0)


def diagnose_routing(
    routing: RoutingLog, floor: RoutingLog, sums: LayerSums, floor_sums: LayerSums, effect: Effect
) -> Shown:
    """Returns the numbers and series of the routing; nothing without a MoE layer."""
    if not routing.layers:
        return Shown()
    again = floor if floor.layers else None
    loads = Loads.of(sums, floor_sums)
    return Shown(
        diagnostics=(*_flip_numbers(routing, again, effect), *_load_numbers(loads)),
        series=(_first_flips(routing, again), _by_margin(routing, again), _drift(routing, again), _variation(loads)),
    )


class Loads(NamedTuple):
    """Tokens sent to each expert, layer by layer, by each side.

    Attributes:
        layers: The MoE layers.
        hi: Loads of hi.
        lo: Loads of lo.
        again: Loads of hi again; `None` where there is no floor.
    """

    layers: tuple[int, ...]
    hi: list[NDArray[np.int64]]
    lo: list[NDArray[np.int64]]
    again: list[NDArray[np.int64]] | None

    @classmethod
    def of(cls, sums: LayerSums, floor_sums: LayerSums) -> Loads:
        """Returns the loads of all layers, in their order."""
        layers = tuple(sorted(sums.routing))
        again = [floor_sums.routing[i].lo_load_E for i in layers] if floor_sums.routing else None
        of_hi, of_lo = [sums.routing[i].hi_load_E for i in layers], [sums.routing[i].lo_load_E for i in layers]
        return cls(layers, of_hi, of_lo, again)


def _flip_numbers(routing: RoutingLog, floor: RoutingLog | None, effect: Effect) -> tuple[Diagnostic, ...]:
    is_silent = routing.flipped > 0 and not has_effect(effect)
    pairs = routing.tokens * len(routing.layers)

    def number(
        name: str, title: str, unit: str, read: Callable[[RoutingLog], float], *, num_items: int = pairs, note: str = ""
    ) -> Diagnostic:
        return diagnostic(
            name,
            Topic.ROUTING,
            title,
            unit=unit,
            larger_is_better=False,
            value=read(routing),
            floor=None if floor is None else read(floor),
            num_items=num_items,
            note=note,
        )

    same = number("exact-set-rate", "Same set of experts", "share of token-layers", exact_set_rate)
    return (
        same.model_copy(update={"larger_is_better": True}),
        number(
            "tokens-rerouted",
            "Other experts in some layer",
            "share of tokens",
            lambda log: log.flipped / log.tokens,
            num_items=routing.tokens,
            note=f"{NO_EFFECT[0].upper()}{NO_EFFECT[1:]}." if is_silent else "",
        ),
        number(
            "gate-weight-drift",
            "Gate weight that moved, L1 over both sets",
            "of 2",
            lambda log: float(np.mean(list(mean_drift(log).values()))),
            note="0 for equal weights, 2 for disjoint sets of experts.",
        ),
    )


def _load_numbers(loads: Loads) -> tuple[Diagnostic, ...]:
    return (_dead(loads), _never_reached(loads), _coverage(loads), _load_variation(loads))


def _dead(loads: Loads) -> Diagnostic:
    def count(side: Sequence[NDArray[np.int64]]) -> int:
        return sum(int((load_E == 0).sum()) for load_E in side)

    hi, lo = count(loads.hi), count(loads.lo)
    lost = sum(int(((a > 0) & (b == 0)).sum()) for a, b in zip(loads.hi, loads.lo, strict=True))
    return diagnostic(
        "dead-experts",
        Topic.ROUTING,
        "Change in experts without a token",
        unit="experts",
        larger_is_better=False,
        hi=hi,
        lo=lo,
        value=lo - hi,
        floor=None if loads.again is None else count(loads.again) - hi,
        num_items=_num_experts(loads),
        note=f"{lost} that hi uses get no token in lo." if lost else "",
    )


def _never_reached(loads: Loads) -> Diagnostic:
    never = sum(int(((a == 0) & (b == 0)).sum()) for a, b in zip(loads.hi, loads.lo, strict=True))
    return diagnostic(
        "experts-never-reached",
        Topic.ROUTING,
        "Experts that no probe reaches",
        unit="experts",
        larger_is_better=False,
        value=never,
        floor=None,
        num_items=_num_experts(loads),
        note="What they compute was not examined." if never else "",
    )


def _coverage(loads: Loads) -> Diagnostic:
    reached = np.concatenate(loads.hi)
    return diagnostic(
        "tokens-per-expert",
        Topic.ROUTING,
        "Tokens an expert of hi gets, median",
        unit="tokens",
        larger_is_better=None,
        value=float(np.median(reached)),
        floor=None,
        num_items=_num_experts(loads),
        note=f"From {int(reached.min()):,} to {int(reached.max()):,}.",
    )


def _load_variation(loads: Loads) -> Diagnostic:
    def mean(side: Sequence[NDArray[np.int64]]) -> float:
        return float(np.mean([load_variation(load_E) for load_E in side]))

    hi, lo = mean(loads.hi), mean(loads.lo)
    return diagnostic(
        "load-variation",
        Topic.ROUTING,
        "Change in the variation of expert load",
        unit="deviation/mean",
        larger_is_better=False,
        hi=hi,
        lo=lo,
        value=lo - hi,
        floor=None if loads.again is None else mean(loads.again) - hi,
        num_items=_num_experts(loads),
        note="Standard deviation over mean of an expert's tokens, mean over layers.",
    )


def _num_experts(loads: Loads) -> int:
    return sum(len(load_E) for load_E in loads.hi)


def _by_layer(
    name: str,
    title: str,
    unit: str,
    layers: Sequence[int],
    values: Sequence[float],
    floor: Sequence[float],
    counts: Sequence[int] = (),
) -> Series:
    return Series(
        name=name,
        topic=Topic.ROUTING,
        title=title,
        axis="layer",
        unit=unit,
        larger_is_better=False,
        labels=tuple(str(layer) for layer in layers),
        values=tuple(values),
        floor=tuple(floor),
        counts=tuple(counts),
    )


def _first_flips(routing: RoutingLog, floor: RoutingLog | None) -> Series:
    layers = sorted(routing.layers)

    def shares(log: RoutingLog) -> list[float]:
        return [log.layers[layer].first_flips / log.tokens for layer in layers]

    counts = [routing.layers[layer].first_flips for layer in layers]
    title = "Layer in which a token first gets other experts"
    again = [] if floor is None else shares(floor)
    return _by_layer("first-flip", title, "share of tokens", layers, shares(routing), again, counts)


def _by_margin(routing: RoutingLog, floor: RoutingLog | None) -> Series:
    found = flips_by_margin(routing)
    return Series(
        name="flips-by-routing-margin",
        topic=Topic.ROUTING,
        title="Other experts, by hi's routing margin",
        axis="score of the last chosen expert less the next",
        unit="share of token-layers",
        larger_is_better=False,
        labels=bin_labels(MARGIN_EDGES),
        values=found.shares,
        floor=() if floor is None else flips_by_margin(floor).shares,
        counts=found.counts,
    )


def _drift(routing: RoutingLog, floor: RoutingLog | None) -> Series:
    found, again = mean_drift(routing), {} if floor is None else mean_drift(floor)
    title = "Gate weight that moved, L1 over both sets"
    values = list(found.values())
    return _by_layer("gate-weight-drift-by-layer", title, "of 2", list(found), values, list(again.values()))


def _variation(loads: Loads) -> Series:
    def of(side: Sequence[NDArray[np.int64]] | None) -> list[float]:
        return [load_variation(load_E) for load_E in side or ()]

    title = "Variation of lo's expert load"
    return _by_layer("load-variation-by-layer", title, "deviation/mean", loads.layers, of(loads.lo), [])
