"""Explains served bits: which of a few suspects has the same leaves as what is served.

Suspects are the trainer's values of earlier steps (a sync that did not happen), the masters as they are or rounded to
bf16 (a layer that the engine leaves alone), and the masters under candidate rules (another quantizer). One that has
every leaf is named; leaves are enough, so a manifest can be explained too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.hooks.leaf import Leaf
from quantaudit.hooks.sides import Quantize, TensorSide, Unit

_MOST_UNITS = 4  # matrices that a candidate must reproduce; it is quantized once for each


class PastStep(NamedTuple):
    """Leaves of the trainer at a step."""

    step: int
    leaves: Mapping[Unit, Leaf]


class Evidence(NamedTuple):
    """What there is to explain a tensor by.

    Attributes:
        served: Served leaves of what differs.
        past: Latest last.
        masters: Unquantized weights by name; `None` if unknown.
        candidates: Rules by name.
    """

    served: Mapping[Unit, Leaf]
    past: Sequence[PastStep]
    masters: Mapping[str, Tensor] | None
    candidates: Mapping[str, Quantize]


def explain(evidence: Evidence) -> str:
    """Returns what has the served bits, or an empty string."""
    for past in reversed(evidence.past):
        if all(past.leaves.get(unit) == leaf for unit, leaf in evidence.served.items()):
            return f"the values of step {past.step}"
    if evidence.masters is None or not all(unit.name in evidence.masters for unit in evidence.served):
        return ""
    for words, rule in _suspects(evidence.candidates):
        side = TensorSide(tensors=evidence.masters, quantize=rule)
        if all(side.read(unit).leaf() == leaf for unit, leaf in list(evidence.served.items())[:_MOST_UNITS]):
            return words
    return ""


def _suspects(candidates: Mapping[str, Quantize]) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    yield "the masters, not quantized", _same
    yield "the masters in bf16, not quantized", _to_bfloat16
    for name, rule in candidates.items():
        yield f"{name} of the masters", rule


def _same(matrix_RC: Tensor) -> Tensor:
    return matrix_RC


def _to_bfloat16(matrix_RC: Tensor) -> Tensor:
    return matrix_RC.to(torch.bfloat16)
