"""The floor of recorded results: hi recorded a second time, paired with its first recording.

Two recordings of one model differ by batch sizes, kernels and sampling; a margin under three such differences cannot
be told from noise. Without a second recording nothing says how large they are, and nothing can be admitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantaudit.core.contract import Clause
from quantaudit.core.decision import Outcome
from quantaudit.core.report import Control
from quantaudit.evaluation.floor import count_changed, measure_floor
from quantaudit.evaluation.reading import SOURCES
from quantaudit.evaluation.recorded.items import Recording
from quantaudit.evaluation.recorded.pairing import Pair, check_comparable, make_side, table_of
from quantaudit.evaluation.slices import Slice
from quantaudit.evaluation.table import Table, select

ADVICE = "record hi a second time, in batches of another size, and give it with --floor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """hi against its second recording.

    Attributes:
        table: The comparison; `None` without a second recording.
        control: What the report says of it.
    """

    table: Table | None
    control: Control


def find_floor(hi: Recording, again: Recording | None, pair: Pair) -> Floor:
    """Pairs hi with its second recording over the probes of the pair.

    Raises:
        InputError: If the second recording is of other questions.
        NotMeasuredError: If it has no item of hi.
    """
    if again is None:
        detail = f"not measured; {ADVICE}"
        return Floor(table=None, control=Control(name="floor", outcome=Outcome.UNDECIDED, detail=detail))
    check_comparable(hi, again)
    order = [probe.id for probe in pair.probes.probes]
    second = make_side(order, {item.id: item for item in again.items})
    table = table_of(pair.hi, second)
    changed, count = count_changed(table)
    detail = f"hi recorded twice: {changed:,} of {count:,} items read otherwise"
    if hi.digest == again.digest:
        detail += "; both files hold the same bytes, so it may be a copy, which shows no floor"
    return Floor(table=table, control=Control(name="floor", outcome=Outcome.PASS, detail=detail))


def floor_of(clause: Clause, part: Slice, floor: Floor, pair: Pair) -> float | None:
    """Returns the floor of a clause, `None` where the second recording lacks numbers that were compared."""
    if floor.table is None:
        return None
    observer = SOURCES.get(clause.observer, clause.observer)
    needed_P = pair.hi.has_P[observer] & pair.lo.has_P[observer]
    compared = part.position_P[needed_P[part.position_P]]
    held = select(floor.table.readings(observer), part.position_P).index_R
    return measure_floor(clause, part, floor.table, pair.probes) if np.isin(compared, held).all() else None
