"""The observers that ship: one number per probe each."""

from __future__ import annotations

from quantaudit.observers.logits import KL_FORWARD, KL_REVERSE, NLL, TOP_1
from quantaudit.observers.paired import Observer
from quantaudit.observers.routing import EXPERT_SET_AGREEMENT
from quantaudit.observers.safety import REFUSAL_MARGIN, REFUSAL_RATE
from quantaudit.observers.task import ACCURACY, MARGIN

PROBE_OBSERVERS: dict[str, Observer] = {
    observer.name: observer
    for observer in (
        NLL,
        ACCURACY,
        MARGIN,
        REFUSAL_RATE,
        REFUSAL_MARGIN,
        KL_FORWARD,
        KL_REVERSE,
        TOP_1,
        EXPERT_SET_AGREEMENT,
    )
}
