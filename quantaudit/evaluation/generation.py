"""Greedy continuations of hi and lo on a sample of the probes: do they part, do they end, do they loop?

Teacher forcing asks both models about the right response; here each goes on from its own tokens, so that one flipped
token has its consequences. The sample is a pure function of the probe set, as many probes of every family, and the
numbers come from it alone; probes whose answer changed sides are generated beside it and only listed. Continuations
hold tokens, no logits. hi generates a second time in smaller batches: that is the floor.

Legend: S probes of the sample, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.decision import Interval
from quantaudit.core.diagnostic import Diagnostic, Series, Topic
from quantaudit.core.engine import Engine
from quantaudit.core.probe import ProbeSet
from quantaudit.evaluation.changes import Change, bounded, show_change
from quantaudit.evaluation.measure import Advance, Engines
from quantaudit.evaluation.shown import Shown, diagnostic
from quantaudit.evaluation.side_by_side import other_thread_count, run_side_by_side
from quantaudit.evaluation.slices import clusters_at
from quantaudit.observers.generation import (
    Parting,
    Tokens,
    estimate_survival,
    find_parting,
    has_ended,
    is_looping,
    median_step,
)
from quantaudit.probes.tokenizer import BOS, EOS, encode
from quantaudit.stats import estimate_flips, estimate_mean, gather

PER_FAMILY = 24
_ONE_IN = 4  # no more than one in so many of a family, that a quick look stays quick ...
_LEAST = 12  # ... but so many, if there are
SPARE_TOKENS = 16  # beyond the longest right answer: room to be seen not to end
# Prompts that are decoded together. Fewer than all: a long prompt is paid for by every short one beside it.
_TOGETHER = 80
_TOGETHER_FLOOR = 50

Values = NDArray[np.float64]


class Answers(NamedTuple):
    """Greedy continuations of one prompt, end token included where it was reached."""

    hi: Tokens
    lo: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What was generated.

    Attributes:
        sample_S: Positions of the sampled probes, ascending; the numbers are theirs.
        answers: By position, those of the sample and the extra ones.
        again: hi's second continuations of the sample, by position.
        max_new: Budget of tokens.
    """

    sample_S: tuple[int, ...]
    answers: Mapping[int, Answers]
    again: Mapping[int, Tokens]
    max_new: int

    def pairs(self) -> list[Answers]:
        """Returns the answers of the sample."""
        return [self.answers[i] for i in self.sample_S]

    def floor_pairs(self) -> list[Answers]:
        """Returns hi against itself on the sample."""
        return [Answers(self.answers[i].hi, self.again[i]) for i in self.sample_S]


def sample_probes(probes: ProbeSet, per_family: int = PER_FAMILY) -> tuple[int, ...]:
    """Returns positions of probes of every family, evenly spaced in the order of the set.

    Args:
        probes: The probe set.
        per_family: The most of one family; fewer of a small one, `_ONE_IN` and `_LEAST` say how many.
    """
    by_family: dict[str, list[int]] = {}
    for position, probe in enumerate(probes.probes):
        by_family.setdefault(probe.family, []).append(position)
    chosen: list[int] = []
    for at in by_family.values():
        count = min(per_family, max(_LEAST, len(at) // _ONE_IN), len(at))
        chosen += [at[k * len(at) // count] for k in range(count)]
    return tuple(sorted(chosen))


def generate(
    engines: Engines, probes: ProbeSet, sample: tuple[int, ...], extra: tuple[int, ...], *, advance: Advance
) -> Generated:
    """Generates from hi and lo, and from hi again.

    Args:
        engines: What to run.
        probes: The probe set.
        sample: Positions to measure on, ascending.
        extra: Positions to generate beside them.
        advance: Told the number of continuations once hi and lo are through, and after the floor.
    """
    everything = sorted({*sample, *extra})
    longest = max(len(encode(probes.probes[i].response)) for i in everything)
    max_new = longest + 1 + SPARE_TOKENS
    hi, lo = run_side_by_side(
        [partial(_decode, engine, probes, everything, max_new, _TOGETHER) for engine in (engines.hi, engines.lo)]
    )
    advance(2 * len(everything))
    with other_thread_count():
        again = _decode(engines.hi, probes, sample, max_new, min(_TOGETHER_FLOOR, -(-len(sample) // 2)))
    advance(len(sample))
    answers = {i: Answers(hi[i], lo[i]) for i in everything}
    return Generated(sample_S=sample, answers=answers, again=again, max_new=max_new)


def _decode(
    engine: Engine, probes: ProbeSet, positions: Sequence[int], max_new: int, together: int
) -> dict[int, Tokens]:
    """Returns the continuations by position; prompts of like length go together."""
    prompts = {i: (BOS, *encode(probes.probes[i].prompt)) for i in positions}
    order = sorted(positions, key=lambda i: (len(prompts[i]), i))
    found: dict[int, Tokens] = {}
    for start in range(0, len(order), together):
        some = order[start : start + together]
        found.update(zip(some, engine.decode([prompts[i] for i in some], max_new=max_new), strict=True))
    return found


def diagnose_generation(generated: Generated, probes: ProbeSet) -> Shown:
    """Returns the numbers of the sample: agreement, the token at which pairs part, ends, loops and lengths."""
    positions = np.array(generated.sample_S, dtype=np.int64)
    sides = _Sides(pairs=generated.pairs(), floor=generated.floor_pairs(), clusters=clusters_at(probes, positions))
    unended = f"No end token within {generated.max_new} tokens."
    return Shown(
        diagnostics=(
            _identical(sides),
            _median(sides, generated.max_new),
            _rate("unended", "Continuations that do not end", lambda t: not has_ended(t, EOS), sides, unended),
            _rate("loops", "Continuations that loop", is_looping, sides, "One n-gram three times or more in a row."),
            _length_ratio(sides),
        ),
        series=(_survival_series(sides), _family_series(generated, probes)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    """The sampled pairs, hi against itself, and the cluster of each."""

    pairs: list[Answers]
    floor: list[Answers]
    clusters: list[str]


def _partings(pairs: list[Answers]) -> list[Parting]:
    return [find_parting(pair.hi, pair.lo) for pair in pairs]


def _identical(sides: _Sides) -> Diagnostic:
    """Returns the share of identical continuations; its interval is that of the share that differs, turned around."""
    estimate = estimate_flips(gather(np.array([float(p.hi != p.lo) for p in sides.pairs]), sides.clusters))
    differs = bounded(estimate.interval)
    return diagnostic(
        "generation-identical",
        Topic.GENERATION,
        "Identical continuations",
        unit="share",
        larger_is_better=True,
        value=1.0 - estimate.value,
        interval=differs
        and Interval(lower=1.0 - differs.upper, upper=1.0 - max(0.0, differs.lower), level=differs.level),
        floor=float(np.mean([pair.hi == pair.lo for pair in sides.floor])),
        num_items=len(sides.pairs),
    )


def _median(sides: _Sides, max_new: int) -> Diagnostic:
    median, floor = (median_step(estimate_survival(_partings(some))) for some in (sides.pairs, sides.floor))
    censored = "Kaplan-Meier: pairs that end alike are censored at their length."
    return diagnostic(
        "generation-median-parting",
        Topic.GENERATION,
        "Token by which half of the pairs have parted",
        unit="tokens",
        larger_is_better=True,
        value=median,
        floor=floor,
        num_items=len(sides.pairs),
        note=censored if median is not None else f"More than half do not part in up to {max_new} tokens. {censored}",
    )


def _rate(name: str, title: str, holds: Callable[[Tokens], bool], sides: _Sides, note: str) -> Diagnostic:
    """Returns the change in how many continuations something holds of; more is worse."""
    hi_S, lo_S = (np.array([float(holds(pair[side])) for pair in sides.pairs]) for side in (0, 1))
    again_S = np.array([float(holds(pair.lo)) for pair in sides.floor])
    return show_change(
        f"generation-{name}",
        Topic.GENERATION,
        title,
        Change(float(hi_S.mean()), float(lo_S.mean()), float(again_S.mean())),
        unit="share",
        larger_is_better=False,
        interval=estimate_flips(gather(lo_S - hi_S, sides.clusters)).interval,
        num_items=len(sides.pairs),
        note=note,
    )


def _length_ratio(sides: _Sides) -> Diagnostic:
    """Returns mean tokens of lo over those of hi; the interval is that of the ratio, linearised at each probe."""
    hi_S, lo_S = (np.array([float(len(pair[side])) for pair in sides.pairs]) for side in (0, 1))
    again_S = np.array([float(len(pair.lo)) for pair in sides.floor])
    ratio = float(lo_S.mean() / hi_S.mean())
    estimate = estimate_mean(gather(ratio + (lo_S - ratio * hi_S) / hi_S.mean(), sides.clusters))
    return diagnostic(
        "generation-length-ratio",
        Topic.GENERATION,
        "Tokens of lo for each of hi",
        unit="ratio",
        larger_is_better=None,
        value=ratio,
        interval=bounded(estimate.interval),
        floor=float(again_S.mean() / hi_S.mean()),
        num_items=len(sides.pairs),
        note=f"{hi_S.mean():.3g} tokens of hi and {lo_S.mean():.3g} of lo on average, end token included.",
    )


def _survival_series(sides: _Sides) -> Series:
    """Returns the share of pairs still together after each token, and how many reach it."""
    lo, floor = estimate_survival(_partings(sides.pairs)), estimate_survival(_partings(sides.floor))
    length = len(lo.together_T)
    again = [float(s) for s in floor.together_T[:length]]
    return Series(
        name="generation-survival",
        topic=Topic.GENERATION,
        title="Continuations still together (Kaplan-Meier)",
        axis="generated token",
        unit="share",
        larger_is_better=True,
        labels=tuple(str(t) for t in range(1, length + 1)),
        values=tuple(float(s) for s in lo.together_T),
        floor=(*again, *[None] * (length - len(again))),
        counts=tuple(int(n) for n in lo.at_risk_T),
    )


def _family_series(generated: Generated, probes: ProbeSet) -> Series:
    """Returns the share of identical continuations by family."""
    families = probes.families()
    of_family = {f: [i for i in generated.sample_S if probes.probes[i].family == f] for f in families}
    same = {i: generated.answers[i].hi == generated.answers[i].lo for i in generated.sample_S}
    again = {i: generated.answers[i].hi == generated.again[i] for i in generated.sample_S}
    return Series(
        name="generation-identical-by-family",
        topic=Topic.GENERATION,
        title="Identical continuations by family",
        axis="family",
        unit="share",
        larger_is_better=True,
        labels=families,
        values=tuple(float(np.mean([same[i] for i in at])) for at in of_family.values()),
        floor=tuple(float(np.mean([again[i] for i in at])) for at in of_family.values()),
        counts=tuple(len(at) for at in of_family.values()),
    )
