"""Whether errors grow with depth: least-squares slopes of weight SQNR and of hidden error over the layers, in dB."""

from __future__ import annotations

import math

import numpy as np

from quantaudit.core.diagnostic import Topic
from quantaudit.evaluation.shown import Shown, diagnostic
from quantaudit.evaluation.weights import WeightEvidence
from quantaudit.observers.sums import LayerSums, hidden_error, slope
from quantaudit.observers.weights import SQNR_CAP_DB


def diagnose_depth(weights: WeightEvidence, sums: LayerSums, floor_sums: LayerSums) -> Shown:
    """Returns both slopes; `None` where fewer than two layers have an error."""
    by_layer = mean_sqnr(weights)
    return Shown(
        diagnostics=(
            diagnostic(
                "weight-sqnr-slope",
                Topic.WEIGHTS,
                "Weight SQNR over depth",
                unit="dB/layer",
                larger_is_better=None,
                value=slope(list(by_layer), list(by_layer.values())),
                floor=None,
                num_items=len(by_layer),
                note="Of the mean over the experts that changed; negative: later layers are rounded more coarsely.",
            ),
            diagnostic(
                "hidden-error-slope",
                Topic.WEIGHTS,
                "Hidden error over depth",
                unit="dB/layer",
                larger_is_better=False,
                value=error_slope(sums),
                floor=error_slope(floor_sums),
                num_items=len(sums.hidden),
                note="Positive: the relative error of the residual grows with depth.",
            ),
        )
    )


def mean_sqnr(weights: WeightEvidence) -> dict[int, float]:
    """Returns, by layer, the mean SQNR in dB over matrices and experts whose values changed."""
    by_layer: dict[int, list[float]] = {}
    for (_, layer), values in sorted(weights.sqnr_db.items()):
        by_layer.setdefault(layer, []).extend(v for v in values if v < SQNR_CAP_DB)
    return {layer: float(np.mean(values)) for layer, values in sorted(by_layer.items()) if values}


def error_slope(sums: LayerSums) -> float | None:
    """Returns the slope of 20 log10 of the relative hidden error, dB a layer; layers without error are left out."""
    errors = {layer: error for layer, error in hidden_error(sums.hidden).items() if error > 0}
    return slope(list(errors), [20 * math.log10(error) for error in errors.values()])
