"""Flips: probes whose answer changed, with what hi and lo really write.

Teacher forcing says which answers changed sides; both models then write them out, and what is listed is what was
written. Answers that are wrong on both sides but in different ways show only there, so those of the sample are listed
too. Text of restricted probes is redacted where it enters the report, as in witnesses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain, zip_longest

import numpy as np

from quantaudit.core.diagnostic import Flip
from quantaudit.core.probe import Probe, ProbeSet
from quantaudit.evaluation.generation import Answers
from quantaudit.evaluation.reading import damage_of
from quantaudit.evaluation.table import Table
from quantaudit.evaluation.witnesses import is_redacted, redactor
from quantaudit.observers.generation import Tokens, has_ended
from quantaudit.probes.tokenizer import EOS, decode, encode

MAX_FLIPS = 60

LOST, GAINED, OTHER = "right to wrong", "wrong to right", "wrong to another wrong"


def choose_flips(probes: ProbeSet, table: Table, limit: int = MAX_FLIPS) -> tuple[int, ...]:
    """Returns positions of answers that changed sides: all, or the first `limit` taken from every group in turn.

    A group is a direction in a family, lost answers first; inside it the largest change of margin comes first.

    Args:
        probes: The probe set.
        table: hi against lo.
        limit: At most so many.
    """
    hits, margins = table.readings("accuracy"), table.readings("answer-margin")
    moved = dict(zip(margins.index_R.tolist(), np.abs(damage_of(margins, larger_is_better=True)), strict=True))
    changed = zip(hits.index_R.tolist(), hits.hi_R, hits.lo_R, strict=True)
    gained = {i: bool(lo > hi) for i, hi, lo in changed if hi != lo}
    largest_first = sorted(gained, key=lambda i: (-float(np.nan_to_num(moved.get(i, 0.0), nan=np.inf)), i))
    return tuple(_in_turn(largest_first, lambda i: (gained[i], probes.probes[i].family))[:limit])


def _in_turn(positions: Iterable[int], group_of: Callable[[int], tuple[int, str]]) -> list[int]:
    """Returns the first of every group, then the second of every group, and so on; groups in their sorted order."""
    groups: dict[tuple[int, str], list[int]] = {}
    for position in positions:
        groups.setdefault(group_of(position), []).append(position)
    in_turn = chain.from_iterable(zip_longest(*(groups[key] for key in sorted(groups))))
    return [position for position in in_turn if position is not None]


def list_flips(
    probes: ProbeSet,
    answers: Mapping[int, Answers],
    chosen: tuple[int, ...],
    *,
    show_restricted: bool,
    limit: int = MAX_FLIPS,
) -> tuple[Flip, ...]:
    """Returns the flips among what was generated, lost answers first, then in the order of the probe set.

    Args:
        probes: The probe set.
        answers: Continuations by position.
        chosen: Positions that come first when there are more than `limit`; then every family has its turn.
        show_restricted: Whether the text of restricted probes is written out.
        limit: At most so many.
    """
    change = {i: name for i, pair in answers.items() if (name := name_change(probes.probes[i], pair)) is not None}
    others = _in_turn(sorted(set(change) - set(chosen)), lambda i: (_rank(change[i]), probes.probes[i].family))
    kept = [i for i in (*chosen, *others) if i in change][:limit]
    return tuple(
        _flip(probes.probes[i], answers[i], change[i], show_restricted=show_restricted)
        for i in sorted(kept, key=lambda i: (_rank(change[i]), i))
    )


def name_change(probe: Probe, pair: Answers) -> str | None:
    """Returns how an answer changed, `None` where both models write the same or are both right."""
    right = (*encode(probe.response), EOS)
    if pair.hi == pair.lo:
        return None
    if right in pair:
        return LOST if pair.hi == right else GAINED
    return OTHER


def write_out(tokens: Tokens) -> str:
    """Returns the text of a continuation, with three dots where it was cut off before it ended."""
    return decode(tokens) if has_ended(tokens, EOS) else f"{decode(tokens)}..."


def _rank(change: str) -> int:
    return (LOST, GAINED, OTHER).index(change)


def _flip(probe: Probe, pair: Answers, change: str, *, show_restricted: bool) -> Flip:
    shown = redactor(probe, show_restricted=show_restricted)
    return Flip(
        probe_id=probe.id,
        family=probe.family,
        cluster=shown(probe.cluster),
        prompt=shown(probe.prompt),
        expected=shown(probe.response),
        hi_response=shown(write_out(pair.hi)),
        lo_response=shown(write_out(pair.lo)),
        change=change,
        is_redacted=is_redacted(probe, show_restricted=show_restricted),
    )
