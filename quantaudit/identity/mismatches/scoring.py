"""How much of what differs a prediction accounts for, expert by expert; see `protocol` for the equation.

Values are compared in the narrower dtype of both sides; +0 equals -0, and NaN equals NaN. Where the server stores the
reciprocal of a scale, its values are a few roundings off what the trainer holds, and that much is no difference. Of the
variants that predict row by row, only those that account for most of a sample of rows are predicted in full.

Shape suffixes: E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.identity.mismatches.protocol import (
    FEW_VALUES,
    LEAST_EXPLAINED,
    About,
    Finding,
    Layer,
    Locate,
    Projection,
    Rewrite,
)
from quantaudit.identity.mismatches.sampling import sample_rows


class Variant(NamedTuple):
    """One way in which a mismatch can happen.

    Attributes:
        train: Value of its field on the trainer's side.
        serve: On the server's side.
        predict: Returns the layer that the server would hold; `None` where this cannot happen.
        is_by_rows: Whether it predicts every row from that row alone.
        locate: Where values come from, if it does nothing but move them.
        rewrite: Makes one stored matrix of another, where that needs no decoding.
    """

    train: str
    serve: str
    predict: Callable[[Layer], Layer | None]
    is_by_rows: bool = False
    locate: Locate | None = None
    rewrite: Rewrite | None = None


class _Score(NamedTuple):
    explained: int
    differing: int
    experts: dict[Projection, tuple[int, ...]]
    largest_share: float
    gained: dict[tuple[Projection, int], int]
    counts: dict[tuple[Projection, int], int]


class _Scored(NamedTuple):
    variant: Variant
    score: _Score


def best(about: About, train: Layer, serve: Layer, variants: Iterable[Variant]) -> Finding | None:
    """Returns the variant that accounts for most; `None` if none accounts for as much as `LEAST_EXPLAINED`.

    Variants are taken in order until one accounts for every bit, so the likely ones come first.
    """
    found = _leading(train, serve, _screened(train, serve, list(variants)))
    return None if found is None else _finding(about, found.variant, found.score)


def num_differing(train: Layer, serve: Layer) -> int:
    """Counts the values in which two layers differ."""
    return sum(int(count_E.sum()) for count_E in _differing(train, serve).values())


def count_differing(a: Tensor, b: Tensor, *, slack: float = 0.0) -> Tensor:
    """Counts differing values, expert by expert.

    Args:
        a: [E, R, C] or [R, C].
        b: The same shape; where it has another one, all of its values differ.
        slack: Relative difference that is none.

    Returns:
        [E] int64; [1] for a matrix.
    """
    num_experts = b.shape[0] if b.dim() > 2 else 1
    if a.shape != b.shape:
        return torch.full((num_experts,), b.numel() // max(num_experts, 1), dtype=torch.int64)
    dtype = torch.bfloat16 if torch.bfloat16 in (a.dtype, b.dtype) else torch.float32
    a, b = a.to(dtype), b.to(dtype)
    is_different = a != b
    if slack:
        is_different &= ~((a - b).abs() <= slack * b.abs())
    if a.sum().isnan():  # which infinities of both signs are too
        is_different &= ~(a.isnan() & b.isnan())
    return is_different.reshape(num_experts, -1).sum(-1).cpu()


def _screened(train: Layer, serve: Layer, variants: list[Variant]) -> list[Variant]:
    """Returns the variants worth predicting in full."""
    sample = sample_rows(train, serve) if any(variant.is_by_rows for variant in variants) else None
    if sample is None or num_differing(*sample) == 0:
        return variants
    before, (sampled, served) = _differing(*sample), sample
    scores: dict[int, int] = {}
    for place, variant in enumerate(variants):
        predicted = variant.predict(sampled) if variant.is_by_rows else None
        if predicted is not None:
            scores[place] = _score(before, served, predicted).explained
    most = max(scores.values(), default=0)
    # Several may account for all of a sample and not for all there is.
    leading = [variants[place] for place, score in scores.items() if score == most > 0]
    return leading + [variant for variant in variants if not variant.is_by_rows]


def _leading(train: Layer, serve: Layer, variants: list[Variant]) -> _Scored | None:
    """Returns the variant that accounts for most; `None` if nothing differs, or none accounts for enough."""
    found: _Scored | None = None
    before = _differing(train, serve)
    for variant in variants:
        predicted = variant.predict(train)
        if predicted is None:
            continue
        score = _score(before, serve, predicted)
        if score.explained > (0 if found is None else found.score.explained):
            found = _Scored(variant, score)
        if score.explained == score.differing:
            break
    return None if found is None or found.score.explained < LEAST_EXPLAINED * found.score.differing else found


def _differing(train: Layer, serve: Layer) -> dict[Projection, Tensor]:
    """Returns how many values of every expert differ, [E] a projection."""
    return {
        name: count_differing(train[name].values, serve[name].values, slack=serve[name].slack)
        for name in _shared(train, serve)
    }


def _score(before: dict[Projection, Tensor], serve: Layer, predicted: Layer) -> _Score:
    explained, differing, largest = 0, 0, 0.0
    experts: dict[Projection, tuple[int, ...]] = {}
    gained: dict[tuple[Projection, int], int] = {}
    counts: dict[tuple[Projection, int], int] = {}
    for name, before_E in before.items():
        after_E = count_differing(predicted[name].values, serve[name].values, slack=serve[name].slack)
        gained_E = (before_E - after_E).clamp(min=0)
        explained += int(gained_E.sum())
        differing += int(before_E.sum())
        counts |= {(name, e): count for e, count in enumerate(before_E.tolist())}
        if gained_E.any():
            experts[name] = tuple(gained_E.nonzero().flatten().tolist())
            gained |= {(name, e): int(gained_E[e]) for e in experts[name]}
            shares_E = torch.where(before_E < FEW_VALUES, 0, gained_E / before_E.clamp(min=1))
            largest = max(largest, float(shares_E.max()))
    return _Score(explained, differing, experts, largest, gained, counts)


def _finding(about: About, variant: Variant, score: _Score) -> Finding:
    return Finding(
        about=about,
        train=variant.train,
        serve=variant.serve,
        explains=score.explained / score.differing,
        num_differing=score.differing,
        num_left=score.differing - score.explained,
        experts=score.experts,
        predict=variant.predict,
        is_by_rows=variant.is_by_rows,
        rewrite=variant.rewrite,
        largest_share=score.largest_share,
        gained=score.gained,
        differing=score.counts,
    )


def in_full(finding: Finding, train: Layer, serve: Layer) -> Finding | None:
    """Returns a finding that was made on some rows with what it accounts for in all; `None` if that is nothing."""
    predicted = finding.predict(train) if finding.predict is not None and finding.is_by_rows else None
    if predicted is None:
        return None
    score = _score(_differing(train, serve), serve, predicted)
    if not score.explained:
        return None
    return replace(
        finding,
        explains=score.explained / score.differing,
        num_differing=score.differing,
        num_left=score.differing - score.explained,
        experts=score.experts,
        largest_share=score.largest_share,
        gained=score.gained,
        differing=score.counts,
    )


def _shared(train: Layer, serve: Layer) -> list[Projection]:
    return [name for name in Projection if name in train and name in serve]
