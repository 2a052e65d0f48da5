"""The observers that ship: one number per probe each."""

from __future__ import annotations

from quantaudit.observers.importance import EXTREME_TOKENS, K3, SECOND_MOMENT
from quantaudit.observers.logits import DELTA_P, JS, KL_FORWARD, KL_REVERSE, NLL, TOP_1, TOP_5
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
        JS,
        TOP_1,
        TOP_5,
        DELTA_P,
        K3,
        EXTREME_TOKENS,
        SECOND_MOMENT,
        EXPERT_SET_AGREEMENT,
    )
}
