"""A fault of one expert of a large stack, or others of two experts, is named with the expert and counted exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quantaudit.identity import compare_alone, compare_between, compare_rules, identify_layer
from quantaudit.identity.compare_alone import name_experts, search_alone
from quantaudit.identity.compare_between import search_between, search_layer
from quantaudit.identity.compare_leads import Between
from quantaudit.identity.compare_matrix import compare_matrices
from quantaudit.identity.compare_paths import compare
from quantaudit.identity.compare_record import Record, sketch_both
from quantaudit.identity.layouts.stored import Part, StoredMatrix
from quantaudit.identity.mismatches.protocol import Finding, Projection
from quantaudit.identity.mismatches.weights import quantize_weight
from quantaudit.numerics import get_scheme
from tests.identity.test_compare_between import as_tensors, stored
from tests.identity.test_layouts import in_module, mxfp4_parts, weight, write

EXPERTS = 48
SHAPES = {Projection.GATE: (32, 64), Projection.UP: (32, 64), Projection.DOWN: (64, 64)}
Matrices = dict[Projection, list[StoredMatrix]]


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches as in a layer of millions of values, of which few experts are drawn."""
    monkeypatch.setattr(compare_between, "LARGE", 1)


@pytest.fixture(scope="module")
def trained() -> Matrices:
    generator = torch.Generator().manual_seed(5)
    weights = {
        name: quantize_weight(torch.randn(EXPERTS, *shape, generator=generator), get_scheme("mxfp4-even"))
        for name, shape in SHAPES.items()
    }
    return {name: [stored(one, e) for e in range(EXPERTS)] for name, one in weights.items()}


def with_part(matrix: StoredMatrix, part: Part, changed: Tensor) -> StoredMatrix:
    return replace(matrix, parts={**matrix.parts, part: changed})


def plant(served: Matrices, fault: str, expert: int) -> None:
    """Does to one expert what a careless loader does."""
    if fault == "swapped-gate-up":
        gate, up = served[Projection.GATE], served[Projection.UP]
        gate[expert], up[expert] = up[expert], gate[expert]
        return
    for name in SHAPES:
        one = served[name][expert]
        codes, scales = one.parts[Part.CODES], one.parts[Part.SCALES]
        if fault == "nibble-order":
            served[name][expert] = with_part(one, Part.CODES, (codes & 15) << 4 | codes >> 4)
        else:
            assert fault == "transposed-scales"
            served[name][expert] = with_part(one, Part.SCALES, scales.t().reshape(scales.shape))


def add_noise(served: Matrices, share: float, experts: range = range(EXPERTS)) -> None:
    """Changes some codes of every expert to their neighbours."""
    generator = torch.Generator().manual_seed(8)
    for name in SHAPES:
        for e in experts:
            codes = served[name][e].parts[Part.CODES]
            is_other = torch.rand(codes.shape, generator=generator) < share
            served[name][e] = with_part(served[name][e], Part.CODES, torch.where(is_other, codes ^ 0x11, codes))


def between(known: Matrices, other: Matrices) -> Between:
    records = {}
    for name in SHAPES:
        records[name] = {
            e: Record(found.differing.values or 0, found.rows, *sketch_both(a, b))
            for e, (a, b) in enumerate(zip(known[name], other[name], strict=True))
            for found in [compare_matrices(a, b, None)]
        }
    return Between(known=as_tensors(known), other=as_tensors(other), records=records)


def copied(matrices: Matrices) -> Matrices:
    return {name: list(experts) for name, experts in matrices.items()}


def found_alone(layer: Between) -> dict[str, Finding]:
    counted = search_layer(layer)
    return {one.about.name: one for one in search_alone(layer, counted)}


def num_differing(layer: Between, expert: int) -> int:
    return sum(count for (_, e), count in layer.by_matrix().items() if e == expert)


@pytest.mark.parametrize("expert", [0, 37, 47])
@pytest.mark.parametrize("fault", ["nibble-order", "transposed-scales", "swapped-gate-up"])
def test_the_only_expert_that_differs_is_the_layer(fault: str, expert: int, trained: Matrices) -> None:
    served = copied(trained)
    plant(served, fault, expert)
    layer = between(trained, served)
    found = search_between(layer)
    assert found is not None and (found.about.name, found.explains) == (fault, 1.0)
    assert {e for experts in found.experts.values() for e in experts} == {expert}
    assert found_alone(layer) == {}


@pytest.mark.parametrize("expert", [0, 37])
@pytest.mark.parametrize("fault", ["nibble-order", "transposed-scales", "swapped-gate-up"])
def test_a_fault_of_one_expert_is_named_where_all_differ(fault: str, expert: int, trained: Matrices) -> None:
    served = copied(trained)
    add_noise(served, 0.02, range(expert))
    add_noise(served, 0.02, range(expert + 1, EXPERTS))
    plant(served, fault, expert)
    layer = between(trained, served)
    assert search_between(layer) is None
    found = found_alone(layer)
    assert list(found) == [fault]
    assert {e for experts in found[fault].experts.values() for e in experts} == {expert}
    assert sum(found[fault].gained.values()) == num_differing(layer, expert)
    assert found[fault].explains == num_differing(layer, expert) / layer.num_differing()


@pytest.mark.parametrize("experts", [(3, 40), (40, 3), (0, 1)])
@pytest.mark.parametrize("faults", [("nibble-order", "transposed-scales"), ("swapped-gate-up", "nibble-order")])
def test_two_experts_with_other_faults_are_both_named(
    faults: tuple[str, str], experts: tuple[int, int], trained: Matrices
) -> None:
    served = copied(trained)
    for fault, expert in zip(faults, experts, strict=True):
        plant(served, fault, expert)
    layer = between(trained, served)
    main = search_between(layer)
    found = {**({} if main is None else {main.about.name: main}), **found_alone(layer)}
    assert found.keys() == set(faults)
    for fault, expert in zip(faults, experts, strict=True):
        assert found[fault].gained.keys() >= {m for m, count in layer.by_matrix().items() if m[1] == expert and count}
    alone = found_alone(layer)
    for fault, expert in zip(faults, experts, strict=True):
        assert fault not in alone or sum(alone[fault].gained.values()) == num_differing(layer, expert)


@pytest.mark.parametrize("odd", [0, 17, 47])
def test_a_fault_of_all_but_one_and_that_of_this_one(odd: int, trained: Matrices) -> None:
    served = copied(trained)
    for expert in range(EXPERTS):
        plant(served, "transposed-scales" if expert == odd else "nibble-order", expert)
    layer = between(trained, served)
    main = search_between(layer)
    assert main is not None and main.about.name == "nibble-order" and main.explains > 1 - 1 / EXPERTS
    (found,) = found_alone(layer).values()
    assert found.about.name == "transposed-scales" and name_experts(found.experts) == f"in expert {odd}"


def test_what_explains_one_of_those_left_is_counted_on_all_of_them(trained: Matrices) -> None:
    served = copied(trained)
    add_noise(served, 0.02)
    odd = (7, 20, 21, 25, 33, 46)
    for expert in odd:
        for name in SHAPES:
            served[name][expert] = trained[name][expert]
        plant(served, "nibble-order", expert)
    generator = torch.Generator().manual_seed(2)
    for name in SHAPES:  # one of which it explains a fifth
        codes = torch.randint(0, 256, trained[name][30].parts[Part.CODES].shape, dtype=torch.uint8, generator=generator)
        swapped = trained[name][30].parts[Part.CODES]
        codes[::5] = (swapped << 4 | swapped >> 4)[::5]
        served[name][30] = with_part(trained[name][30], Part.CODES, codes)
    layer = between(trained, served)
    found = found_alone(layer)
    assert list(found) == ["nibble-order"]
    assert set(found["nibble-order"].gained) == {(name, e) for name in SHAPES for e in odd}
    assert name_experts(found["nibble-order"].experts) == "in 6 experts: 7, 20, 21, 25 ..."


def test_an_expert_that_differs_less_than_the_others_is_looked_at(trained: Matrices) -> None:
    served = copied(trained)
    add_noise(served, 0.9)
    for name in SHAPES:
        served[name][37] = trained[name][37]
    plant(served, "transposed-scales", 37)
    layer = between(trained, served)
    assert num_differing(layer, 37) < min(num_differing(layer, e) for e in range(EXPERTS) if e != 37)
    assert name_experts(found_alone(layer)["transposed-scales"].experts) == "in expert 37"


@pytest.mark.parametrize("share", [0.001, 0.3])
def test_noise_is_not_explained_and_few_experts_are_looked_at(
    share: float, trained: Matrices, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Between] = []
    follow = compare_between.follow

    def recorded(layer: Between) -> list[Finding]:
        looked.append(layer)
        return follow(layer)

    monkeypatch.setattr(compare_alone, "follow", recorded)
    served = copied(trained)
    add_noise(served, share)
    assert found_alone(between(trained, served)) == {}
    assert all(len(layer.differing()) == 1 for layer in looked) and len(looked) <= compare_alone._MOST_ALONE


def test_a_comparison_names_the_expert_and_its_share(tmp_path: Path) -> None:
    a, b = dict[str, Tensor](), dict[str, Tensor]()
    for expert in range(4):
        parts = mxfp4_parts(weight(64, 128, seed=expert))
        other = dict(parts)
        if expert == 1:
            other["weight_packed"] = parts["weight_packed"] << 4 | parts["weight_packed"] >> 4
        if expert == 3:
            other["weight_scale"] = parts["weight_scale"].t().reshape(parts["weight_scale"].shape)
        module = f"model.layers.2.mlp.experts.{expert}.up_proj"
        a |= in_module(parts, module)
        b |= in_module(other, module)
    found = compare(write(tmp_path / "a.safetensors", a), write(tmp_path / "b.safetensors", b), threads=1)
    first, second = found.diagnosis
    assert (first.mismatch, second.mismatch) == ("nibble-order", "transposed-scales")
    assert first.explains + second.explains == pytest.approx(1.0, abs=1e-12)  # of doubles below 1, rounded twice
    assert second.serve.endswith(", in expert 3") and second.tensors == ("layers.2.experts.up",)


@pytest.mark.parametrize("expert", [1, 6])
def test_experts_that_no_rule_explains_are_read_of_a_master_too_large_to_be_read_whole(
    expert: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identify_layer, "MOST_VALUES", 2 * 64 * 128)
    a, b = dict[str, Tensor](), dict[str, Tensor]()
    for number in range(8):
        master = weight(64, 128, seed=number)
        parts = mxfp4_parts(master)
        if number == expert:
            parts["weight_packed"] = parts["weight_packed"] << 4 | parts["weight_packed"] >> 4
        module = f"model.layers.2.mlp.experts.{number}.up_proj"
        a[f"{module}.weight"] = master
        b |= in_module(parts, module)
    found = compare(write(tmp_path / "a.safetensors", a), write(tmp_path / "b.safetensors", b), threads=1)
    (fault,) = [one for one in found.diagnosis if one.kind != compare_rules.RULE]
    assert (fault.mismatch, fault.explains) == ("nibble-order", 1.0)
    assert fault.serve.endswith(f", in expert {expert}") == (expert > 1)  # else it is of those read first
