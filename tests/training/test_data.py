"""The stream of a repair holds training items only, is a function of seed and step, and weighs families as asked."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from quantaudit.core.errors import InputError
from quantaudit.core.probe import Split
from quantaudit.probes.world import FAMILIES, build_world, default_probes
from quantaudit.training.data import TrainStream
from tests.training.toy import REPAIR

EVERYTHING = dict.fromkeys((f for f in FAMILIES if f != "long-recall"), 1.0)


@pytest.mark.parametrize("split", [Split.AUDIT, Split.SELECT])
def test_no_probe_that_judges_or_selects_is_ever_trained_on(split: Split) -> None:
    stream = TrainStream(REPAIR.model_copy(update={"families": EVERYTHING, "items_per_step": 400}))
    trained = {(item.prompt, item.response) for step in range(20) for item in stream.draw(step)}
    probes = default_probes(split)
    assert len(trained) > 4000
    assert not trained & {(p.prompt, p.response) for p in probes.probes}


def test_the_items_of_a_step_are_a_function_of_seed_and_step() -> None:
    stream, again = TrainStream(REPAIR), TrainStream(REPAIR)
    assert stream.draw(7) == again.draw(7)
    assert again.draw(3) == stream.draw(3), "whatever was drawn before"
    assert stream.draw(7) != stream.draw(8)
    assert TrainStream(REPAIR.model_copy(update={"seed": 1})).draw(7) != stream.draw(7)


def test_families_come_with_their_shares() -> None:
    stream = TrainStream(REPAIR.model_copy(update={"items_per_step": 2000}))
    counts = Counter(item.family for item in stream.draw(0))
    assert set(counts) == {"facts", "copying", "benign"}
    # 2000 draws of share .5 have a standard deviation of 22: five of them
    assert abs(counts["facts"] - 1000) < 112


def test_the_weights_of_a_step_sum_to_one_and_follow_the_families() -> None:
    world = build_world()
    plain = TrainStream(REPAIR, world).batches(0)
    heavy = TrainStream(REPAIR.model_copy(update={"weights": {"facts": 3.0}}), world).batches(0)
    for batches in (plain, heavy):
        # at most a few hundred fp32 numbers are added
        assert float(torch.cat([b.weight_M for b in batches]).sum()) == pytest.approx(1.0, abs=512 * 2.0**-24)
    values = torch.cat([b.weight_M for b in heavy]).unique()
    assert len(values) == 2 and float(values[1] / values[0]) == pytest.approx(3.0, abs=2.0**-20)
    assert len(torch.cat([b.weight_M for b in plain]).unique()) == 1


def test_micro_batches_hold_all_items_sorted_by_length() -> None:
    batches = TrainStream(REPAIR.model_copy(update={"items_per_step": 7, "micro_batches": 3})).batches(0)
    lengths = [n for batch in batches for n in batch.packed.segments.lengths]
    assert [len(b.packed.segments.lengths) for b in batches] == [3, 3, 1]
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("key", ["families", "weights"])
def test_an_unknown_family_is_refused(key: str) -> None:
    with pytest.raises(InputError, match=rf"\[repair.{key}\] names the family 'fact'; expected families among facts"):
        TrainStream(REPAIR.model_copy(update={key: {"fact": 1.0}}))


def test_a_step_that_weighs_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="all have weight zero"):
        TrainStream(REPAIR.model_copy(update={"weights": dict.fromkeys(FAMILIES, 0.0)})).batches(0)
