"""Rounding in the order of a forward: every stack on the inputs that it will be served, and the train split only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.core.errors import InputError
from quantaudit.core.probe import Split
from quantaudit.core.recipe import Gptq, Recipe, Rule
from quantaudit.core.recipe_file import load_recipe
from quantaudit.core.site import Point, Site
from quantaudit.engines.native import NativeEngine
from quantaudit.engines.opening import open_realization
from quantaudit.engines.quantized import QuantizedGroupedLinear
from quantaudit.engines.realization import Realization, apply_recipe, matmuls
from quantaudit.engines.stored import StoredTensor, quantize_stack
from quantaudit.model.linear import GroupedLinear
from quantaudit.numerics import dequantize, fake_quantize, get_scheme
from quantaudit.probes.encoding import encode_pair
from quantaudit.probes.world import FAMILIES, default_probes
from quantaudit.training.export import Storage, export_masters, write_stacks
from quantaudit.training.gptq import SeenInputs, round_stack
from quantaudit.training.rounding import Rounded, calibration_items, catch_inputs, gptq_of, round_by_gptq
from tests.engines.small import CPU, EXPERTS, draw_sequences
from tests.training import gptq_oracle
from tests.training.gptq_library import choose, needs_library
from tests.training.toy import toy_hi

GPTQ = Gptq(items_per_family=3)
RECIPE = Recipe(name="mine", rules=(Rule(match=EXPERTS, weight="int3-g32"),), gptq=GPTQ)
ITEMS = calibration_items(GPTQ)


class Subject(NamedTuple):
    """A model before and after, its weights before, and what progress was told."""

    hi: Realization
    before: dict[str, Tensor]
    found: Rounded
    told: list[tuple[int, int]]


@pytest.fixture(scope="module", params=["oracle", pytest.param("library", marks=needs_library)])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """Rounds the toy model once, by the oracle or by the library."""
    with pytest.MonkeyPatch.context() as patch:
        choose(request.param, patch)
        hi = toy_hi()
        told: list[tuple[int, int]] = []
        before = {name: p.detach().clone() for name, p in hi.model.named_parameters()}
        found = round_by_gptq(hi, RECIPE, sequences=ITEMS, progress=lambda _, done, total: told.append((done, total)))
        yield Subject(hi, before, found, told)


@pytest.fixture
def by_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the oracle in the place of the library."""
    choose("oracle", monkeypatch)


def masters_of(hi: Realization) -> dict[str, Tensor]:
    """Returns the weights of all expert stacks."""
    return {name: stack.weight.detach() for name, stack in matmuls(hi.model) if isinstance(stack, GroupedLinear)}


def widths_of(hi: Realization) -> dict[str, int]:
    """Returns how many columns the matrices of every expert stack have."""
    return {name: weight.shape[-1] for name, weight in masters_of(hi).items()}


def inputs_of(realization: Realization, name: str) -> SeenInputs:
    """Returns what a stack is given while the calibration items run through."""
    stack = dict(matmuls(realization.model))[name]
    assert isinstance(stack, QuantizedGroupedLinear)
    point = Point.EXPERT_HIDDEN if name.endswith("w2") else Point.EXPERT_INPUT
    return catch_inputs(realization, Site(int(name.split(".")[1]), point), stack, ITEMS)


def output_error(held: StoredTensor, master_EOI: Tensor, seen: SeenInputs) -> float:
    """Returns the mean squared error of a row's outputs, summed over experts."""
    lost_EOI = held.decode(torch.float32).double() - master_EOI.double()
    return float((lost_EOI @ seen.hessian_EII.double() * lost_EOI).sum())


def test_every_stack_is_rounded_on_the_inputs_that_it_is_served(subject: Subject) -> None:
    found = subject.found.realization
    for name, master in masters_of(subject.hi).items():
        again = round_stack(master, get_scheme("int3-g32"), inputs_of(found, name), dampening=GPTQ.dampening).tensor
        assert torch.equal(found.stored[name].decode(torch.float32), dequantize(again, torch.float32)), name


def test_the_output_error_of_every_stack_falls_below_round_to_nearest_on_its_inputs(subject: Subject) -> None:
    nearest, found = apply_recipe(subject.hi, RECIPE), subject.found.realization
    for name, master in masters_of(subject.hi).items():
        seen, held = inputs_of(found, name), found.stored[name]
        assert output_error(held, master, seen) < output_error(nearest.stored[name], master, seen), name
        assert torch.equal(held.scales, nearest.stored[name].scales), "codes differ, and nothing else"


def test_matrices_without_rows_and_with_few_are_counted(subject: Subject) -> None:
    found = subject.found
    rows = [(width, inputs_of(found.realization, name).rows_E) for name, width in widths_of(subject.hi).items()]
    assert found.num_matrices == 9 * 8 == sum(len(seen) for _, seen in rows)
    assert found.num_nearest == sum(count == 0 for _, seen in rows for count in seen)
    assert found.num_short == sum(0 < count < width for width, seen in rows for count in seen)


def test_hi_is_left_as_it_was_and_progress_is_told(subject: Subject) -> None:
    now = dict(subject.hi.model.named_parameters())
    assert all(torch.equal(now[name], value) for name, value in subject.before.items())
    assert subject.told == [(done, 6) for done in range(1, 7)]


def test_inputs_are_seen_as_the_scheme_of_the_activation_leaves_them(by_oracle: None) -> None:
    hi = toy_hi()
    recipe = RECIPE.model_copy(update={"rules": (Rule(match=EXPERTS, weight="int3-g32", activation="fp8-channel"),)})
    lo = apply_recipe(hi, recipe)
    trace = NativeEngine(lo, CPU).forward(ITEMS, observe=frozenset({Point.TOP_K_IDS, Point.EXPERT_INPUT}))
    rows_RI = fake_quantize(trace.sites[Site(1, Point.EXPERT_INPUT)].unsqueeze(1), get_scheme("fp8-channel")).squeeze(1)
    counts_E = torch.bincount(trace.sites[Site(1, Point.TOP_K_IDS)].flatten(), minlength=8).tolist()
    seen = inputs_of(lo, "layers.1.experts.w1")
    wanted_II, _ = gptq_oracle.update_hessian(rows_RI.split(counts_E)[0], torch.zeros(64, 64), 0)
    assert seen.rows_E == tuple(counts_E)
    assert torch.equal(seen.hessian_EII[0], wanted_II)


def test_calibration_items_are_those_of_the_train_split_and_of_the_seed() -> None:
    probes = [
        encode_pair(p.prompt, p.response)
        for split in (Split.AUDIT, Split.SELECT)
        for p in default_probes(split, dict.fromkeys(FAMILIES, 20)).probes
    ]
    items = calibration_items(Gptq(items_per_family=20))
    assert len(items) == 9 * 20
    assert not {item.tokens for item in items} & {probe.tokens for probe in probes}
    assert items == calibration_items(Gptq(items_per_family=20))
    assert items != calibration_items(Gptq(items_per_family=20, seed=1))


def test_the_exported_codes_and_scales_are_served_again_bit_for_bit(subject: Subject, tmp_path: Path) -> None:
    found = subject.found.realization
    card = write_stacks(tmp_path / "out", export_masters(subject.hi.model), dict(found.stored), RECIPE)
    assert set(card.storage.values()) == {Storage.PACKED} and len(card.storage) == 9
    opened = open_realization(open_checkpoint(tmp_path / "out"), CPU)
    for name, held in found.stored.items():
        assert torch.equal(opened.stored[name].decode(torch.float32), held.decode(torch.float32)), name
    batch = draw_sequences(9, 23)
    served, wanted = (NativeEngine(r, CPU).forward(batch).logits_MV for r in (apply_recipe(opened, RECIPE), found))
    assert torch.equal(served, wanted)


def test_what_cannot_be_rounded_is_refused_in_one_sentence(by_oracle: None) -> None:
    hi = toy_hi()
    held = quantize_stack(masters_of(hi)["layers.1.experts.w1"], get_scheme("mxfp4-even"))
    with pytest.raises(InputError, match="start from the bf16 checkpoint"):
        round_by_gptq(replace(hi, stored={"layers.1.experts.w1": held}), RECIPE, sequences=ITEMS)
    attention = RECIPE.model_copy(
        update={"rules": (Rule(match="layers.*.routed_expert_down_proj", weight="int8-channel"),)}
    )
    with pytest.raises(InputError, match="no routed expert a weight scheme"):
        round_by_gptq(hi, attention, sequences=ITEMS)
    unwritable = RECIPE.model_copy(update={"rules": (Rule(match=EXPERTS, weight="nf4-b64"),)})
    with pytest.raises(InputError, match=r"layers.1.experts.w1 in nf4-b64, with codes of its own"):
        round_by_gptq(hi, unwritable, sequences=ITEMS)
    with pytest.raises(InputError, match=r"has no \[gptq\]"):
        gptq_of(load_recipe("int3-g32"))
