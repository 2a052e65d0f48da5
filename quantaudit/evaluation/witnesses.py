"""Witnesses: the probes on which hi and lo part most, with both greedy answers.

Text of restricted probes is redacted where it enters the report, so that no view of the report can leak it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quantaudit.core.engine import Engine
from quantaudit.core.probe import Probe, ProbeSet
from quantaudit.core.report import Witness
from quantaudit.evaluation.reading import damage_of
from quantaudit.evaluation.table import Table
from quantaudit.probes.tokenizer import BOS, decode, encode

_REDACTED = "[redacted]"


def find_witnesses(
    probes: ProbeSet, table: Table, hi: Engine, lo: Engine, *, limit: int, show_restricted: bool
) -> tuple[Witness, ...]:
    """Returns the worst witnesses: right answers lost first, then the largest losses of margin.

    Args:
        probes: The probe set.
        table: hi against lo.
        hi: Decodes the reference's answers.
        lo: Decodes the deployment's answers.
        limit: At most so many.
        show_restricted: Whether the text of restricted probes is written out.
    """
    margins, hits = table.readings("answer-margin"), table.readings("accuracy")
    damage = np.nan_to_num(damage_of(margins, larger_is_better=True), nan=np.inf)
    lost = hits.hi_R - hits.lo_R
    order = [int(i) for i in np.lexsort((margins.index_R, -damage, -lost)) if damage[i] != 0][:limit]
    chosen = [probes.probes[int(margins.index_R[i])] for i in order]
    if not chosen:
        return ()
    prompts = [(BOS, *encode(p.prompt)) for p in chosen]
    longest = max(len(p.response) for p in chosen) + 8
    answers = zip(hi.decode(prompts, max_new=longest), lo.decode(prompts, max_new=longest), strict=True)
    return tuple(
        _witness(
            probe,
            hi_text=decode(hi_answer),
            lo_text=decode(lo_answer),
            margins=(float(margins.hi_R[i]), float(margins.lo_R[i])),
            damage=float(damage[i]),
            hits=(bool(hits.hi_R[i]), bool(hits.lo_R[i])),
            show_restricted=show_restricted,
        )
        for i, probe, (hi_answer, lo_answer) in zip(order, chosen, answers, strict=True)
    )


def _witness(
    probe: Probe,
    *,
    hi_text: str,
    lo_text: str,
    margins: tuple[float, float],
    damage: float,
    hits: tuple[bool, bool],
    show_restricted: bool,
) -> Witness:
    shown = redactor(probe, show_restricted=show_restricted)
    return Witness(
        probe_id=probe.id,
        family=probe.family,
        cluster=shown(probe.cluster),
        prompt=shown(probe.prompt),
        expected=shown(probe.response),
        hi_response=shown(hi_text),
        lo_response=shown(lo_text),
        hi_margin=margins[0],
        lo_margin=margins[1],
        damage=damage,
        change=_change(hits, hi_text == lo_text),
        is_redacted=is_redacted(probe, show_restricted=show_restricted),
    )


def is_redacted(probe: Probe, *, show_restricted: bool) -> bool:
    """Tells whether text about a probe is left out of the report."""
    return probe.is_restricted_text and not show_restricted


def redactor(probe: Probe, *, show_restricted: bool) -> Callable[[str], str]:
    """Returns what turns any text about a probe into what the report may show of it."""
    hides = is_redacted(probe, show_restricted=show_restricted)
    return lambda text: _REDACTED if hides else text


def _change(hits: tuple[bool, bool], is_same_text: bool) -> str:
    match hits:
        case (True, False):
            return "right to wrong"
        case (False, True):
            return "wrong to right"
        case (False, False) if not is_same_text:
            return "wrong to another wrong"
    return "margin only"
