"""Observers that give one number a layer instead of one a probe: alarms and pictures, never gates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quantaudit.core.report import ExpertMap, LayerProfile
from quantaudit.evaluation.weights import WeightEvidence
from quantaudit.observers.sums import LayerSums, hidden_error, load_drift, set_agreement


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerObserver:
    """A metric per layer; `by_layer` reads it off the sums."""

    title: str
    unit: str
    larger_is_better: bool
    by_layer: Callable[[LayerSums], dict[int, float]]

    def explain(self, value: float | None, floor: float | None) -> str:
        """Returns the sentence of the alarm."""
        if value is None:
            return "Not measured."
        against = f", against a floor of {floor:.3g}" if floor is not None else ""
        return f"{value:.3g} {self.unit} at the worst layer{against}; shown."


def _no_layers(sums: LayerSums) -> dict[int, float]:
    return {}


LAYER_OBSERVERS: dict[str, LayerObserver] = {
    "load-drift": LayerObserver(
        title="Expert load drift",
        unit="total variation",
        larger_is_better=False,
        by_layer=lambda sums: load_drift(sums.routing),
    ),
    "hidden-error": LayerObserver(
        title="Hidden error",
        unit="relative L2",
        larger_is_better=False,
        by_layer=lambda sums: hidden_error(sums.hidden),
    ),
    "weight-sqnr": LayerObserver(title="Weight SQNR", unit="dB", larger_is_better=True, by_layer=_no_layers),
}


def layer_value(name: str, sums: LayerSums, weights: WeightEvidence | None) -> float | None:
    """Returns the worst layer's value (for weights: the worst expert's), or `None` without one."""
    if name == "weight-sqnr":
        values = [v for row in weights.sqnr_db.values() for v in row] if weights is not None else []
        return min(values, default=None)
    spec = LAYER_OBSERVERS[name]
    by_layer = spec.by_layer(sums).values()
    return (min if spec.larger_is_better else max)(by_layer, default=None)


def profiles(sums: LayerSums, floor: LayerSums) -> tuple[LayerProfile, ...]:
    """Returns hidden error, routing agreement and load drift, a number a layer, against the floor."""
    agreement = LayerObserver(
        title="Expert-set agreement",
        unit="share of experts",
        larger_is_better=True,
        by_layer=lambda s: set_agreement(s.routing),
    )
    specs = {
        "hidden-error": LAYER_OBSERVERS["hidden-error"],
        "expert-set-agreement": agreement,
        "load-drift": LAYER_OBSERVERS["load-drift"],
    }
    return tuple(_profile(name, spec, sums, floor) for name, spec in specs.items())


def _profile(name: str, spec: LayerObserver, sums: LayerSums, floor: LayerSums) -> LayerProfile:
    values = spec.by_layer(sums)
    return LayerProfile(
        name=name,
        title=spec.title,
        unit=spec.unit,
        larger_is_better=spec.larger_is_better,
        layers=tuple(values),
        values=tuple(values.values()),
        floor=tuple(spec.by_layer(floor).values()),
    )


def routing_maps(sums: LayerSums) -> tuple[ExpertMap, ...]:
    """Returns layer x expert tables: hi's load, and the share of hi's tokens that lo sends to the same expert."""
    layers = tuple(sorted(sums.routing))
    load, kept = [], []
    for layer in layers:
        s = sums.routing[layer]
        load.append(tuple(float(x) for x in s.hi_load_E / max(int(s.hi_load_E.sum()), 1)))
        share = np.where(s.hi_load_E > 0, s.kept_E / np.maximum(s.hi_load_E, 1), np.nan)
        kept.append(tuple(None if np.isnan(x) else float(x) for x in share))
    return (
        ExpertMap(
            name="load",
            title="Expert load of hi",
            unit="share of tokens",
            larger_is_better=None,
            layers=layers,
            values=tuple(load),
        ),
        ExpertMap(
            name="routing",
            title="Tokens that keep their expert",
            unit="share",
            larger_is_better=True,
            layers=layers,
            values=tuple(kept),
        ),
    )
