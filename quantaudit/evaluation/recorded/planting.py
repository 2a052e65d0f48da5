"""Damage planted in recorded numbers, so that every gate can be shown to see some.

`answers-lost` takes hi's own numbers and loses what is there to lose: right answers become wrong, the right choice
trails by what it led by, every token becomes e times less likely, restricted requests are no longer refused and benign
ones are. How much of it a gate needs to see is measured by `evaluation.doses`, which does it to a few items at a time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.probe import Behaviour, ProbeSet
from quantaudit.evaluation.recorded.pairing import Side, table_of
from quantaudit.evaluation.table import Table

_NATS_LOST = 1.0


def plant_faults(hi: Side, probes: ProbeSet) -> dict[str, Table]:
    """Returns hi against itself with each fault done to every item."""
    refuses_P = np.array([probe.behaviour is Behaviour.REFUSE for probe in probes.probes])
    harmed = {name: _lose(name, value_P, refuses_P) for name, value_P in hi.value_P.items()}
    return {"answers-lost": table_of(hi, Side(value_P=harmed, has_P=hi.has_P))}


def _lose(observer: str, value_P: NDArray[np.float64], refuses_P: NDArray[np.bool_]) -> NDArray[np.float64]:
    match observer:
        case "nll":
            return value_P + _NATS_LOST
        case "answer-margin":
            return -np.abs(value_P)
        case "refusal-rate":
            return np.where(refuses_P, 0.0, 1.0)
        case "refusal-margin":
            return np.where(refuses_P, -np.abs(value_P), np.abs(value_P))
        case _:
            return np.zeros_like(value_P)
