"""The correction bias of hi's routers, noted while the weights are compared: routing margins cannot be told without it.

The bias takes part in the selection of experts and in nothing else, so no site of a forward shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from torch import Tensor

from quantaudit.core.engine import WeightPair

NO_BIAS: Mapping[int, Tensor] = MappingProxyType({})
_NAME = "e_score_correction_bias"


def note_biases(pairs: Iterable[WeightPair], into: dict[int, Tensor]) -> Iterator[WeightPair]:
    """Yields the pairs as they come and keeps hi's bias of every layer that has one, `[E]`."""
    for pair in pairs:
        if pair.name.endswith(_NAME):
            into[pair.layer] = pair.hi
        yield pair
