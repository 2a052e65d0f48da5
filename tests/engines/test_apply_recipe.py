"""A recipe makes lo from hi: the first matching rule decides, the rest is shared, and no mistake is silent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quantaudit.core.errors import InputError
from quantaudit.core.recipe import Recipe, Rule
from quantaudit.core.recipe_file import load_recipe, recipe_names
from quantaudit.engines.quantized import QuantizedGroupedLinear
from quantaudit.engines.realization import (
    Realization,
    apply_recipe,
    matmuls,
    parameter_readers,
    pass_through,
    weight_values,
)
from quantaudit.engines.stored import StoredTensor
from quantaudit.model.linear import GroupedLinear, Linear
from quantaudit.numerics import fake_quantize, get_scheme
from tests.engines.small import EXPERTS, SMALL, experts_in, recipe

W1 = "model.layers.1.block_sparse_moe.experts.w1.weight"


def values(realization: Realization) -> dict[str, torch.Tensor]:
    """Returns the weight of every matrix product by module name."""
    return dict(weight_values(realization))


def test_modules_are_named_without_the_wrapping(plain_hi: Realization) -> None:
    names = [name for name, _ in matmuls(plain_hi.model)]
    assert {"layers.1.experts.w1", "layers.0.mlp.gate_proj", "layers.3.shared_experts.up_proj", "lm_head"} <= set(names)
    assert len(names) == len(set(names))
    routers = [name for name in names if name.endswith(".gate")]
    assert routers == [f"layers.{layer}.gate" for layer in SMALL.moe_layers()]


def test_the_first_matching_rule_wins(plain_hi: Realization) -> None:
    lo = apply_recipe(
        plain_hi,
        recipe(Rule(match="layers.2.experts.*", weight="int4-g32-div7"), Rule(match=EXPERTS, weight="mxfp4-even")),
    )
    schemes = {name: held.scheme.name for name, held in lo.stored.items()}
    assert schemes == {
        f"layers.{layer}.experts.{role}": "int4-g32-div7" if layer == 2 else "mxfp4-even"
        for layer in SMALL.moe_layers()
        for role in ("w1", "w2", "w3")
    }


def test_quantized_weights_are_the_quantizers_and_others_are_equal(plain_hi: Realization) -> None:
    before, after = values(plain_hi), values(apply_recipe(plain_hi, experts_in("mxfp4-even")))
    scheme = get_scheme("mxfp4-even")
    assert before.keys() == after.keys()
    for name, weight in before.items():
        if ".experts." in name:
            assert torch.equal(after[name], fake_quantize(weight.float(), scheme)), name
            assert not torch.equal(after[name], weight.float()), name
        else:
            assert torch.equal(after[name], weight), name


def test_the_head_can_be_quantized_too(plain_hi: Realization) -> None:
    lo = apply_recipe(plain_hi, recipe(Rule(match="lm_head", weight="mxfp8-e4m3-even")))
    assert list(lo.stored) == ["lm_head"]


def test_hi_is_untouched_and_shared(plain_hi: Realization) -> None:
    before = {name: p.clone() for name, p in plain_hi.model.named_parameters()}
    pointers = {name: p.data_ptr() for name, p in plain_hi.model.named_parameters()}
    lo = apply_recipe(plain_hi, experts_in("int2-g32", "mxfp8-e4m3-even"))
    after = dict(plain_hi.model.named_parameters())
    assert {name: p.data_ptr() for name, p in after.items()} == pointers
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(isinstance(m, Linear | GroupedLinear) for _, m in matmuls(plain_hi.model))
    shared = {name: p.data_ptr() for name, p in lo.model.named_parameters()}
    assert shared == {name: pointer for name, pointer in pointers.items() if ".experts." not in name}


def test_an_activation_alone_shares_the_weight(plain_hi: Realization) -> None:
    lo = apply_recipe(plain_hi, experts_in(activation="mxfp8-e4m3-even"))
    module = lo.model.get_submodule("model.layers.1.block_sparse_moe.experts.w1")
    assert isinstance(module, QuantizedGroupedLinear) and isinstance(module.stored, torch.Tensor)
    assert module.stored.data_ptr() == plain_hi.model.get_parameter(W1).data_ptr()
    assert set(lo.activations.values()) == {"mxfp8-e4m3-even"} and not lo.stored


def test_a_rule_that_decides_nothing_is_refused(plain_hi: Realization) -> None:
    for rules in (
        [Rule(match="layers.*.expert.w1", weight="mxfp4-even")],
        [Rule(match=EXPERTS, weight="mxfp4-even"), Rule(match="layers.1.experts.w1", weight="nvfp4")],
    ):
        with pytest.raises(InputError, match="decides no module"):
            apply_recipe(plain_hi, recipe(*rules))


def test_a_router_alone_can_be_quantized(plain_hi: Realization) -> None:
    lo = apply_recipe(plain_hi, recipe(Rule(match="layers.*.gate", weight="int4-g32-div7.5")))
    assert set(lo.stored) == {f"layers.{layer}.gate" for layer in SMALL.moe_layers()}
    path = "model.layers.1.block_sparse_moe.gate"
    router, own = lo.model.get_submodule(path), plain_hi.model.get_submodule(path)
    assert router.e_score_correction_bias is own.e_score_correction_bias
    x_ND = torch.randn(5, SMALL.hidden_size)
    weight = fake_quantize(
        plain_hi.model.get_parameter(f"{path}.weight").detach().float(), get_scheme("int4-g32-div7.5")
    )
    assert torch.equal(router(x_ND), torch.nn.functional.linear(x_ND, weight))
    pairs = zip(weight_values(plain_hi), weight_values(lo), strict=True)
    changed = {name for (name, hi), (_, own) in pairs if not torch.equal(hi.float(), own.float())}
    assert changed == set(lo.stored)


def test_every_parameter_is_read_once(plain_hi: Realization) -> None:
    for realization in (plain_hi, pass_through(plain_hi), apply_recipe(plain_hi, experts_in("mxfp4-even"))):
        assert set(parameter_readers(realization)) == {name for name, _ in plain_hi.model.named_parameters()}


@pytest.mark.parametrize("rule", [{"weight": "int4-g128-div7"}, {"activation": "mxfp4-even"}], ids=str)
def test_groups_that_do_not_divide_are_refused_before_a_forward(plain_hi: Realization, rule: dict[str, str]) -> None:
    match = "layers.1.experts.w1" if "weight" in rule else "layers.1.self_attn.q_b_proj"
    names = [name for name, _ in matmuls(plain_hi.model)]
    found = match if match in names else next(n for n, m in matmuls(plain_hi.model) if _width(m) % 32)
    with pytest.raises(InputError, match="group size") as caught:
        apply_recipe(plain_hi, recipe(Rule(match=found, **rule)))
    assert found in caught.value.given


def _width(module: torch.nn.Module) -> int:
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return weight.shape[-1]


def test_an_unknown_scheme_is_refused(plain_hi: Realization) -> None:
    with pytest.raises(InputError, match="mxfp4-evn"):
        apply_recipe(plain_hi, experts_in("mxfp4-evn"))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(plain_hi: Realization, bad: float) -> None:
    weight = plain_hi.model.get_parameter(W1)
    kept = weight.data
    try:
        weight.data = kept.clone()
        weight.data[3, 1, 7] = bad
        with pytest.raises(InputError, match=r"layers\.1\.experts\.w1 holds NaN or infinity"):
            apply_recipe(plain_hi, experts_in("mxfp4-even"))
    finally:
        weight.data = kept


def test_what_is_stored_in_the_scheme_keeps_its_codes(packed_hi: Realization) -> None:
    lo = apply_recipe(packed_hi, load_recipe("k3-w4a16"))
    assert lo.stored.keys() == packed_hi.stored.keys() and len(lo.stored) == 3 * len(SMALL.moe_layers())
    assert all(lo.stored[name] is held for name, held in packed_hi.stored.items())
    assert any("keep their codes" in note and "9 weights" in note for note in lo.notes)


def test_a_rule_without_a_weight_says_nothing_about_kept_codes(packed_hi: Realization) -> None:
    lo = apply_recipe(packed_hi, experts_in(activation="mxfp8-e4m3-even"))
    assert all(lo.stored[name] is held for name, held in packed_hi.stored.items())
    assert not any("keep their codes" in note for note in lo.notes)


def test_another_scale_rule_of_the_same_encoding_keeps_the_codes(packed_hi: Realization) -> None:
    lo = apply_recipe(packed_hi, experts_in("mxfp4-floor"))
    assert all(lo.stored[name] is held for name, held in packed_hi.stored.items())


@pytest.mark.parametrize("name", ["nvfp4", "int4-g32-div7", "mxfp8-e4m3-even"])
def test_double_quantization_is_refused_unless_asked_for(packed_hi: Realization, name: str) -> None:
    with pytest.raises(InputError, match="is stored in mxfp4-.* and recipe 'test' gives it") as caught:
        apply_recipe(packed_hi, experts_in(name))
    assert "requantize = true" in caught.value.fix
    lo = apply_recipe(packed_hi, experts_in(name, requantize=True))
    assert {held.scheme.name for held in lo.stored.values()} == {name}
    assert any("double quantization" in note for note in lo.notes)


def test_nothing_is_noted_as_double_where_nothing_is(plain_hi: Realization) -> None:
    lo = apply_recipe(plain_hi, experts_in("nvfp4", requantize=True))
    assert not any("double" in note for note in lo.notes)


def test_experts_that_no_rule_names_stay_packed(packed_hi: Realization) -> None:
    lo = apply_recipe(packed_hi, Recipe(name="as stored"))
    for layer in SMALL.moe_layers():
        module = lo.model.get_submodule(f"model.layers.{layer}.block_sparse_moe.experts.w2")
        assert isinstance(module, QuantizedGroupedLinear) and isinstance(module.stored, StoredTensor)


@pytest.mark.parametrize("name", recipe_names())
def test_every_bundled_recipe_fits(plain_hi: Realization, name: str) -> None:
    lo = apply_recipe(plain_hi, load_recipe(name))
    assert bool(lo.stored) == (name != "identity")
    assert set(load_recipe(name).notes) <= set(lo.notes)


def test_the_identity_control_keeps_packed_experts_packed(packed_hi: Realization, small_folders: Path) -> None:
    control = pass_through(packed_hi)
    module = control.model.get_submodule("model.layers.1.block_sparse_moe.experts.w1")
    assert isinstance(module, QuantizedGroupedLinear) and isinstance(module.stored, StoredTensor)
    before, after = values(packed_hi), values(control)
    assert all(torch.equal(after[name].float(), weight.float()) for name, weight in before.items())
