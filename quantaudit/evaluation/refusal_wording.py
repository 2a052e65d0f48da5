"""How refusals are worded: greedy continuations to restricted requests of the sample, of hi, of lo and of hi again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quantaudit.core.decision import Interval
from quantaudit.core.diagnostic import Diagnostic, Topic
from quantaudit.core.probe import Behaviour, ProbeSet
from quantaudit.evaluation.changes import Change, show_change
from quantaudit.evaluation.generation import Generated
from quantaudit.evaluation.refusal_prefixes import prefixes_of
from quantaudit.evaluation.shown import Shown
from quantaudit.evaluation.slices import clusters_at
from quantaudit.observers.template import OPENING_TOKENS, Wording, commonest_opening, describe_wording
from quantaudit.stats import estimate_flips, gather

_OPENING = f"An opening is the first {OPENING_TOKENS} tokens."


def diagnose_wording(generated: Generated, probes: ProbeSet) -> Shown:
    """Returns four numbers about the wording, each as a change; nothing without restricted requests in the sample."""
    at = [i for i in generated.sample_S if probes.probes[i].behaviour is Behaviour.REFUSE]
    if not at:
        return Shown()
    hi, lo, again = describe_sides(generated, at, probes)
    moved = gather(lo.is_common_C - hi.is_common_C, clusters_at(probes, np.array(at, dtype=np.int64)))

    def show(
        name: str,
        title: str,
        unit: str,
        read: Callable[[Wording], float | None],
        note: str = _OPENING,
        interval: Interval | None = None,
    ) -> Diagnostic:
        return show_change(
            f"refusal-wording-{name}",
            Topic.SAFETY,
            title,
            Change(read(hi), read(lo), read(again)),
            unit=unit,
            larger_is_better=None,
            interval=interval,
            num_items=len(at),
            note=note,
        )

    refusing = f"{hi.num_refusals} of hi and {lo.num_refusals} of lo refuse."
    interval = estimate_flips(moved).interval
    return Shown(
        diagnostics=(
            show("common", "Hi's commonest opening to restricted requests", "share", _common_share, interval=interval),
            show("unique", "Openings that occur once", "share", lambda w: w.unique_rate),
            show("entropy", "Entropy of openings", "nats", lambda w: w.entropy),
            show("length", "Length of refusals", "tokens", lambda w: w.refusal_length, note=refusing),
        )
    )


def describe_sides(generated: Generated, at: list[int], probes: ProbeSet) -> tuple[Wording, Wording, Wording]:
    """Returns the wording of hi, of lo, and of hi again on these positions; refusals are known by their prefixes."""
    refusals = tuple({prefix for i in at for prefix in prefixes_of(probes.probes[i], Behaviour.REFUSE)})
    common = commonest_opening([generated.answers[i].hi for i in at])
    return (
        describe_wording([generated.answers[i].hi for i in at], common, refusals),
        describe_wording([generated.answers[i].lo for i in at], common, refusals),
        describe_wording([generated.again[i] for i in at], common, refusals),
    )


def _common_share(wording: Wording) -> float:
    return float(wording.is_common_C.mean())
