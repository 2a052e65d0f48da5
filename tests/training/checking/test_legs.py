"""Legs that are declared bitwise have no tolerance; the others hold theirs, and it grows as rounding does."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.sensitivity.loop import TINY
from quantaudit.core.recipe import ComputeDtype
from quantaudit.model.cache import Cache
from quantaudit.model.initialize import initialize
from quantaudit.model.lm import LanguageModel
from quantaudit.model.segments import Segments
from quantaudit.training.checking.legs import AGREEMENTS, Agreement, Leg, Stack, stack_of, tolerance

STACK = Stack(layers=5, width=600, scale=10.0, dtype=ComputeDtype.FLOAT32)


@pytest.mark.parametrize("leg", Leg)
def test_bitwise_legs_have_no_tolerance_and_the_others_do(leg: Leg) -> None:
    assert (tolerance(leg, STACK) == 0.0) == (AGREEMENTS[leg] is Agreement.BITWISE)


def test_a_tolerance_is_what_its_derivation_says() -> None:
    expected = 4 * 8 * math.sqrt(12 * 5 * 600) * 2.0**-24 * 16 * 10
    assert tolerance(Leg.DECODE, STACK) == pytest.approx(expected, rel=1e-12)


def test_bf16_is_allowed_as_much_more_as_it_rounds_coarser() -> None:
    coarse = Stack(layers=5, width=600, scale=10.0, dtype=ComputeDtype.BFLOAT16)
    assert tolerance(Leg.BATCH, coarse) == pytest.approx(2.0**16 * tolerance(Leg.BATCH, STACK), rel=1e-12)


@torch.inference_mode()
def test_batches_parts_and_decoding_keep_to_their_tolerances() -> None:
    model = LanguageModel(TINY)
    initialize(model, 0)
    tokens = torch.randint(256, (3, 12), generator=torch.Generator().manual_seed(0))

    def read(rows: list[int], start: int, stop: int, cache: Cache | None = None) -> torch.Tensor:
        segments = Segments.of((stop - start,) * len(rows), torch.device("cpu"))
        logits: torch.Tensor = model(tokens[rows, start:stop].flatten(), segments, cache=cache)
        return logits.log_softmax(-1).view(len(rows), stop - start, -1)

    whole = read([0, 1, 2], 0, 12)
    stack = stack_of(TINY, scale=float(whole.abs().max()), dtype=ComputeDtype.FLOAT32, longest=12)
    cache, parted = Cache(), Cache()
    first = read([0], 0, 6, parted)
    decoded = [read([0], place, place + 1, cache) for place in range(12)]
    others = {
        Leg.BATCH: torch.cat([read([row], 0, 12) for row in range(3)]) - whole,
        Leg.PREFILL: torch.cat([first, read([0], 6, 12, parted)], dim=1) - whole[:1],
        Leg.DECODE: torch.cat(decoded, dim=1) - whole[:1],
    }
    for leg, difference in others.items():
        assert float(difference.abs().max()) <= tolerance(leg, stack)
