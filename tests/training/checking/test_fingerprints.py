"""Sides that hold the same values have one fingerprint; a single code that differs is found where it differs."""

from __future__ import annotations

from dataclasses import replace

import torch

from quantaudit.core.scheme import Tie
from quantaudit.core.step_log import Side
from quantaudit.training.checking.fingerprints import compare_sides, digest_layer_set, leaf_of_stack
from quantaudit.training.checking.sides import Shipped
from tests.training.checking.made import DENSE, EVEN, EXPERTS, NAMES, change, flip_code, sides, stored

ALL = slice(None)
FIRST = NAMES[0]


def test_equal_sides_have_one_fingerprint_and_part_nowhere() -> None:
    found = compare_sides(sides(), ALL)
    assert not found.parted
    assert [check.side for check in found.checks] == list(Side)
    assert len({check.values for check in found.checks}) == 1
    assert {(check.num_checked, check.num_matrices) for check in found.checks} == {(len(NAMES) * EXPERTS,) * 2}


def test_another_version_has_another_fingerprint() -> None:
    one, other = (compare_sides(sides(version), ALL).checks[0].values for version in (0, 1))
    assert one != other


def test_a_flipped_code_parts_the_sides_where_it_was_flipped() -> None:
    honest = sides()
    legs = {
        "sent": (Side.TRAINER, Side.SENT),
        "loaded": (Side.SENT, Side.LOADED),
        "derived": (Side.LOADED, Side.DERIVED),
    }
    for side, leg in legs.items():
        flipped = flip_code(stored(honest, FIRST), expert=3, row=5, byte=7)
        found = compare_sides(change(honest, side, {FIRST: flipped}), ALL)
        assert dict(found.parted) == {leg: (FIRST,)}
        behind = [check.side for check in found.checks if check.differing == (FIRST,)]
        assert behind == list(Side)[list(Side).index(leg[1]) :]
        assert len({check.values for check in found.checks}) == 2


def test_two_faults_that_cancel_are_both_seen() -> None:
    honest = sides()
    wrong = change(honest, "sent", {FIRST: flip_code(stored(honest, FIRST), 0, 0, 0)})
    healed = change(wrong, "derived", {FIRST: stored(honest, FIRST)})
    found = compare_sides(healed, ALL)
    assert set(found.parted) == {(Side.TRAINER, Side.SENT), (Side.LOADED, Side.DERIVED)}
    assert found.checks[-1].differing == ()


def test_a_sample_sees_its_own_experts_only() -> None:
    honest = sides()
    wrong = change(honest, "sent", {FIRST: flip_code(stored(honest, FIRST), 2, 0, 0)})
    seen = [bool(compare_sides(wrong, slice(first, None, EXPERTS)).parted) for first in range(EXPERTS)]
    assert seen == [False, False, True, False]


def test_leaves_of_samples_add_up_to_the_leaf_of_the_whole() -> None:
    values = sides().trainer[FIRST].values
    lanes = [[int(leaf_of_stack(values[s], s)[i : i + 16], 16) for i in (0, 16)] for s in (ALL, slice(0, None, 2))]
    odd = slice(1, None, 2)
    rest = [int(leaf_of_stack(values[odd], odd)[i : i + 16], 16) for i in (0, 16)]
    assert lanes[0] == [(a + b) % (1 << 64) for a, b in zip(lanes[1], rest, strict=True)]


def test_zeros_of_either_sign_and_nans_are_equal() -> None:
    honest = sides()
    plain = honest.trainer[FIRST].values.clone()
    plain[0, 0, 0], plain[0, 0, 1] = 0.0, float("nan")
    trained = replace(honest.trainer[FIRST], values=plain)
    served = plain.clone()
    served[0, 0, 0] = -0.0
    shipped: dict[str, Shipped] = {FIRST: served}
    found = compare_sides(change(replace(honest, trainer={**honest.trainer, FIRST: trained}), "sent", shipped), ALL)
    assert not found.parted
    served[0, 0, 1] = 1.0
    assert compare_sides(change(honest, "sent", shipped), ALL).parted


def test_a_dense_weight_is_compared_and_in_no_fingerprint() -> None:
    honest = sides()
    before = compare_sides(honest, ALL)
    other = change(honest, "loaded", {DENSE: honest.trainer[DENSE].source + 1})
    found = compare_sides(other, ALL)
    assert dict(found.parted) == {(Side.SENT, Side.LOADED): (DENSE,)}
    assert [check.values for check in found.checks] == [check.values for check in before.checks]


def test_a_plain_weight_that_the_trainer_does_not_compute_with_is_seen() -> None:
    honest = sides()
    lying = replace(honest.trainer[DENSE], values=honest.trainer[DENSE].source + 1)
    found = compare_sides(replace(honest, trainer={**honest.trainer, DENSE: lying}), ALL)
    assert (Side.TRAINER, Side.SENT) in found.parted


def test_a_weight_that_did_not_arrive_parts_the_sides() -> None:
    honest = sides()
    assert honest.loaded is not None
    lost = replace(honest, loaded={name: w for name, w in honest.loaded.items() if name != FIRST})
    assert compare_sides(lost, ALL).parted[Side.SENT, Side.LOADED] == (FIRST,)


def test_the_layer_set_is_that_of_arithmetic_and_not_of_names_of_schemes() -> None:
    renamed = EVEN.model_copy(update={"name": "other"})
    whole = digest_layer_set({"a": EVEN, "b": None})
    assert whole == digest_layer_set({"b": None, "a": renamed})
    assert whole != digest_layer_set({"a": EVEN, "b": EVEN})
    assert whole != digest_layer_set({"a": EVEN.model_copy(update={"tie": Tie.AWAY}), "b": None})


def test_shapes_that_differ_part_the_sides() -> None:
    honest = sides()
    turned = honest.trainer[FIRST].values.transpose(1, 2).contiguous()
    assert compare_sides(change(honest, "sent", {FIRST: turned}), ALL).parted
    assert torch.equal(turned.transpose(1, 2), honest.trainer[FIRST].values)
