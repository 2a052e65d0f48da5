"""The ladder: hi against its own experts in fewer and fewer bits, on some of the probes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from quantaudit.composition import ladder_steps
from quantaudit.core.batch import Sequence
from quantaudit.core.diagnostic import Ladder
from quantaudit.core.engine import Trace
from quantaudit.engines.native import NativeEngine
from quantaudit.engines.realization import Realization, apply_recipe, round_experts, weight_values
from quantaudit.evaluation.ladder import EVERY, Step, climb, sample_probes
from quantaudit.numerics import get_scheme
from tests.engines.small import CPU, draw_sequences, experts_in, open_small
from tests.evaluation.subjects import world_probes


@pytest.fixture(scope="module")
def hi(audited: Path) -> Realization:
    return open_small(audited / "plain")


@pytest.fixture(scope="module")
def ladder(hi: Realization) -> Ladder:
    found = climb(ladder_steps(hi, CPU), NativeEngine(hi, CPU), world_probes(), batch_size=60, advance=lambda n: None)
    assert found is not None
    return found


@pytest.mark.parametrize("scheme", ["int8-channel", "int4-g32-div7.5", "int2-g32"])
def test_rounding_as_it_is_used_is_storing_and_decoding(hi: Realization, scheme: str) -> None:
    batch = draw_sequences(9, 20, 5)
    stored = NativeEngine(apply_recipe(hi, experts_in(scheme)), CPU).forward(batch)
    rounded = NativeEngine(round_experts(hi, get_scheme(scheme)), CPU).forward(batch)
    assert torch.equal(stored.logits_MV, rounded.logits_MV)


def test_rungs_descend_and_carry_damage(ladder: Ladder) -> None:
    assert [rung.bits for rung in ladder.rungs] == [8, 4, 3, 2]
    assert ladder.num_probes == len(world_probes().probes)
    spread = [rung.nll.standard_error for rung in ladder.rungs]
    assert spread[0] < spread[-1]
    assert ladder.reason.endswith(".")


class Flattened(NativeEngine):
    """An engine that halves its logits: an untrained model is too sure of itself, so this one is the better model."""

    def forward(self, batch: list[Sequence], **options: Any) -> Trace:
        """Runs a forward and halves its logits."""
        trace = super().forward(batch, **options)
        return replace(trace, logits_MV=trace.logits_MV / 2)


@pytest.mark.parametrize(("better_at", "is_monotone"), [(8, True), (4, False)], ids=str)
def test_fewer_bits_that_come_out_better_are_noticed(hi: Realization, better_at: int, is_monotone: bool) -> None:
    steps = [
        Step(
            scheme=f"{bits} bits",
            bits=bits,
            open=partial(Flattened if bits == better_at else NativeEngine, hi, CPU),
        )
        for bits in (8, 4)
    ]
    found = climb(steps, NativeEngine(hi, CPU), world_probes(), batch_size=60, advance=lambda n: None)
    assert found is not None and found.is_monotone is is_monotone
    assert (found.p_value <= 0.05) is not is_monotone


def test_one_probe_in_ten_of_every_family_is_taken() -> None:
    probes = world_probes()
    chosen = sample_probes(probes)
    per_family = len(probes.probes) // len(probes.families())
    assert chosen.families() == probes.families()
    assert len(chosen.probes) == len(probes.families()) * -(-per_family // EVERY)


def test_a_packed_reference_has_no_ladder(audited: Path) -> None:
    packed = open_small(audited / "packed")
    assert packed.stored and ladder_steps(packed, CPU) == ()
    engine = NativeEngine(packed, CPU)
    assert climb((), engine, world_probes(), batch_size=60, advance=lambda n: None) is None


def test_a_rung_holds_no_weights_of_its_own(hi: Realization) -> None:
    rung = round_experts(hi, get_scheme("int4-g32-div7.5"))
    held = [m.stored for m in rung.model.modules() if type(m).__name__ == "RoundedGroupedLinear"]
    pointers = {value.data_ptr() for _, value in weight_values(hi)}
    assert held and all(isinstance(h, torch.Tensor) and h.data_ptr() in pointers for h in held)
