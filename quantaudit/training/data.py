"""What a repair trains on: an endless stream of the closed world's training items, drawn anew in every step.

The items of a step are a function of (seed, step), so a run that goes on remembers nothing, and two arms of an
experiment see the same ones. An item belongs to a split by its content; those of other splits cannot come up. Unlike
the program that makes the embedded model, a repair does not meet the held-out phrasings of facts either.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from quantaudit.core.batch import Sequence
from quantaudit.core.errors import InputError
from quantaudit.core.recipe import Repair
from quantaudit.model.packed import Packed, pack
from quantaudit.probes.encoding import encode_pair
from quantaudit.probes.world import FAMILIES, TRAINED_ONLY, Item, World, build_world, sample_train

_KNOWN = FAMILIES + TRAINED_ONLY


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro batch.

    Attributes:
        packed: Its tensors.
        weight_M: Share of every scored position in the loss of the step; they sum to one over its micro batches.
    """

    packed: Packed
    weight_M: Tensor


class TrainStream:
    """The training items of a repair, step by step."""

    def __init__(self, repair: Repair, world: World | None = None) -> None:
        _check_families(repair.families, "families")
        _check_families(repair.weights, "weights")
        self._repair = repair
        self._world = build_world() if world is None else world

    def draw(self, step: int) -> list[Item]:
        """Returns the items of the 0-based step."""
        repair = self._repair
        rng = random.Random(f"repair/{repair.seed}/{step}")
        names = rng.choices(list(repair.families), list(repair.families.values()), k=repair.items_per_step)
        return [sample_train(self._world, name, rng) for name in names]

    def batches(self, step: int) -> list[Batch]:
        """Returns the micro batches of the 0-based step; sorted by length, so that a batch wastes little padding."""
        encoded = [
            (encode_pair(i.prompt, i.response), self._repair.weights.get(i.family, 1.0)) for i in self.draw(step)
        ]
        encoded.sort(key=lambda pair: len(pair[0].tokens))
        whole = sum(weight * sequence.num_scored for sequence, weight in encoded)
        if whole == 0:
            raise InputError(
                "a step whose items all have weight zero",
                expected="a family with a weight above zero",
                fix="raise a weight in [repair.weights]",
            )
        size = -(-len(encoded) // self._repair.micro_batches)
        return [_batch(encoded[start : start + size], whole) for start in range(0, len(encoded), size)]


def _batch(encoded: list[tuple[Sequence, float]], whole: float) -> Batch:
    weight_M = torch.tensor([weight / whole for sequence, weight in encoded for _ in range(sequence.num_scored)])
    return Batch(packed=pack([sequence for sequence, _ in encoded], torch.device("cpu")), weight_M=weight_M)


def _check_families(shares: Mapping[str, float], key: str) -> None:
    unknown = [name for name in shares if name not in _KNOWN]
    if unknown:
        raise InputError(
            f"[repair.{key}] names the family {unknown[0]!r}",
            expected=f"families among {', '.join(_KNOWN)}",
            fix="correct the name",
        )
