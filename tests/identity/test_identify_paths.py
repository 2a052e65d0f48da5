"""Checkpoints are identified tensor by tensor, and layers by the faults that their projections show together."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.core.identification import Identification, Standing
from quantaudit.core.scheme import Division, Layout
from quantaudit.core.verdict import ExitCode
from quantaudit.identity.identify_paths import identify
from quantaudit.numerics import fake_quantize, get_scheme, pack, quantize
from tests.checkpoint.tiny import LAYER_2, WEIGHTS, save

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`plain` masters, and what is served of them."""
    root = tmp_path_factory.mktemp("models")
    save(root / "plain")
    for name in ("mxfp4-rceil-zero", "mxfp4-even", "mxfp4-ceil"):
        save(root / name, scheme=get_scheme(name))
    return root


def changed(models: Path, name: str, change: Callable[[State], None], to: Path) -> Path:
    """A copy of a checkpoint with other tensors."""
    shutil.copytree(models / name, to)
    state = load_file(to / WEIGHTS)
    change(state)
    save_file({key: tensor.contiguous().clone() for key, tensor in state.items()}, to / WEIGHTS)
    return to


def only_experts(found: Identification) -> Identification:
    assert {tensor.name.split(".")[2] for tensor in found.tensors} == {"experts"}
    return found


def test_the_rule_of_a_packed_checkpoint_is_named(models: Path) -> None:
    found = only_experts(identify(models / "mxfp4-rceil-zero", master=models / "plain", threads=1))
    assert found.exit_code is ExitCode.PASS and len(found.tensors) == 6
    for tensor in found.tensors:
        assert tensor.standing is Standing.EXPLAINED and tensor.scheme == "mxfp4-rceil-zero"
        assert tensor.explains == 1.0 and tensor.num_matrices == 6
        assert tensor.differing.model_dump() == {"scales": 0, "codes": 0, "values": 0}
        assert tensor.rule is not None and (tensor.rule.scale, tensor.rule.tie) == ("rceil", "toward-zero")
    assert Identification.from_json(found.to_json()) == found


def test_fake_quantized_bf16_tensors_are_named_too(models: Path, tmp_path: Path) -> None:
    def quantize_experts(state: State) -> None:
        for key in state:
            if key.startswith(LAYER_2):
                state[key] = fake_quantize(state[key], get_scheme("int4-g32-div7.5"))

    path = changed(models, "plain", quantize_experts, tmp_path / "served")
    found = identify(path, master=models / "plain", match="layers.2.experts.*", threads=1)
    assert {tensor.scheme for tensor in found.tensors} == {"int4-g32-div7.5"}
    assert found.exit_code is ExitCode.PASS


def test_a_permutation_of_experts_is_named_and_is_a_difference(models: Path, tmp_path: Path) -> None:
    def swap(state: State) -> None:
        for key in [key for key in state if ".layers.2." in key and ".experts.0." in key]:
            other = key.replace(".experts.0.", ".experts.4.")
            state[key], state[other] = state[other], state[key]

    path = changed(models, "mxfp4-even", swap, tmp_path / "served")
    found = identify(path, master=models / "plain", match="*experts*", threads=1)
    assert found.exit_code is ExitCode.REJECTED
    for tensor in found.tensors:
        if tensor.name.startswith("layers.4."):
            assert tensor.standing is Standing.EXPLAINED
            continue
        assert tensor.standing is Standing.MISMATCH and tensor.explains == 1.0
        assert tensor.mismatch is not None and tensor.mismatch.mismatch == "permuted-experts"
        assert tensor.mismatch.serve == "0 holds 4, 4 holds 0" and tensor.mismatch.kind == "K11"


def test_a_layer_served_unquantized_is_named(models: Path, tmp_path: Path) -> None:
    plain = load_file(models / "plain" / WEIGHTS)

    def unpack(state: State) -> None:
        for key in [key for key in state if ".layers.2." in key and key.endswith(".weight_packed")]:
            stem = key.removesuffix("_packed")
            del state[key], state[f"{stem}_scale"]
            state[stem] = plain[stem]

    path = changed(models, "mxfp4-even", unpack, tmp_path / "served")
    found = identify(path, master=models / "plain", match="*experts*", threads=1)
    skipped = [tensor for tensor in found.tensors if tensor.name.startswith("layers.2.")]
    assert [t.mismatch.mismatch for t in skipped if t.mismatch is not None] == ["skipped-layer"] * 3
    assert found.exit_code is ExitCode.REJECTED


def test_a_changed_code_is_not_explained(models: Path, tmp_path: Path) -> None:
    def damage(state: State) -> None:
        state[f"{LAYER_2}.3.w2.weight_packed"][0, 0] ^= 1

    path = changed(models, "mxfp4-even", damage, tmp_path / "served")
    found = identify(path, master=models / "plain", match="layers.2.experts.down", threads=1)
    (tensor,) = found.tensors
    assert tensor.standing is Standing.PARTLY and tensor.scheme == "mxfp4-even"
    assert tensor.mismatch is None and tensor.differing.values == 1
    assert found.exit_code is ExitCode.REJECTED


def test_without_masters_codes_prove_or_nothing_is_claimed(models: Path) -> None:
    ceil = identify(models / "mxfp4-ceil", threads=1)
    assert {tensor.standing for tensor in ceil.tensors} == {Standing.PROVED} and ceil.exit_code is ExitCode.PASS
    even = identify(models / "mxfp4-even", threads=1)
    assert {tensor.standing for tensor in even.tensors} <= {Standing.NOT_CHECKED, Standing.LIKELY}
    assert even.exit_code is ExitCode.INCONCLUSIVE


def test_latent_mismatches_are_named_where_asked(models: Path) -> None:
    found = identify(models / "mxfp4-even", master=models / "plain", match="layers.2.experts.*", latent=True, threads=1)
    # bf16 masters: another dtype of the source changes nothing, the order of experts would.
    assert all("source-dtype" in t.latent and "permuted-experts" not in t.latent for t in found.tensors)


def test_nothing_quantized_is_not_measured(models: Path) -> None:
    with pytest.raises(NotMeasuredError, match="nothing is quantized"):
        identify(models / "plain", master=models / "plain", threads=1)
    with pytest.raises(NotMeasuredError, match="--master HI"):
        identify(models / "plain", threads=1)


def test_masters_of_other_names_are_not_measured(models: Path, tmp_path: Path) -> None:
    save_file({"another.weight": torch.zeros(2, 2)}, tmp_path / "other.safetensors")
    with pytest.raises(NotMeasuredError, match="names are like"):
        identify(models / "mxfp4-even", master=tmp_path / "other.safetensors", threads=1)


def test_earlier_masters_need_a_master(models: Path) -> None:
    with pytest.raises(InputError, match="add --master HI"):
        identify(models / "mxfp4-even", earlier=[models / "plain"], threads=1)


def test_masters_of_another_shape_are_not_checked(models: Path, tmp_path: Path) -> None:
    def shorten(state: State) -> None:
        for key in [key for key in state if ".experts." in key and ".w2." in key]:
            state[key] = state[key][:-1]

    path = changed(models, "plain", shorten, tmp_path / "masters")
    found = identify(models / "mxfp4-even", master=path, match="layers.2.experts.*", threads=1)
    down = next(tensor for tensor in found.tensors if tensor.name.endswith("down"))
    assert down.standing is Standing.NOT_CHECKED and "the master is" in down.note
    assert found.exit_code is ExitCode.INCONCLUSIVE


def test_one_expert_served_unquantized_is_named(models: Path, tmp_path: Path) -> None:
    plain = load_file(models / "plain" / WEIGHTS)

    def unpack(state: State) -> None:
        for key in [key for key in state if key.startswith(f"{LAYER_2}.3.") and key.endswith(".weight_packed")]:
            stem = key.removesuffix("_packed")
            del state[key], state[f"{stem}_scale"]
            state[stem] = plain[stem]

    path = changed(models, "mxfp4-even", unpack, tmp_path / "served")
    found = identify(path, master=models / "plain", match="layers.2.experts.*", threads=1)
    assert [t.mismatch.mismatch for t in found.tensors if t.mismatch is not None] == ["skipped-layer"] * 3
    assert {tensor.standing for tensor in found.tensors} == {Standing.MISMATCH}


RARE = get_scheme("int4-g32-div7").model_copy(update={"name": "rare", "division": Division.RECIPROCAL})


@pytest.mark.parametrize("fault", ["stale", "source-dtype"])
def test_a_fault_is_named_though_no_tensor_shows_its_scheme(models: Path, tmp_path: Path, fault: str) -> None:
    rng = torch.Generator().manual_seed(4)

    def widen(state: State) -> None:
        for key in state:
            if key.startswith(LAYER_2):
                state[key] = state[key].float() * (1 + 0.01 * torch.rand(state[key].shape, generator=rng))

    def serve(state: State) -> None:
        for key in state:
            if key.startswith(LAYER_2):
                source = state[key].bfloat16() if fault == "source-dtype" else state[key]
                state[key] = fake_quantize(source.float(), RARE)

    earlier = changed(models, "plain", widen, tmp_path / "earlier")
    master = earlier if fault == "source-dtype" else changed(models, "plain", widen, tmp_path / "master")
    shutil.copytree(earlier, tmp_path / "source" / "plain")
    served = changed(tmp_path / "source", "plain", serve, tmp_path / "served")
    past = () if fault == "source-dtype" else (earlier,)
    found = identify(served, master=master, earlier=past, match="layers.2.experts.*", threads=1)
    assert [t.mismatch.mismatch for t in found.tensors if t.mismatch is not None] == [fault] * 3
    assert {tensor.standing for tensor in found.tensors} == {Standing.MISMATCH}


def test_experts_of_several_shapes_are_not_checked(models: Path, tmp_path: Path) -> None:
    def turn(state: State) -> None:
        state[f"{LAYER_2}.1.w2.weight"] = state[f"{LAYER_2}.1.w2.weight"].T

    path = changed(models, "plain", turn, tmp_path / "served")
    found = identify(path, master=models / "plain", match="layers.2.experts.down", threads=1)
    (tensor,) = found.tensors
    assert tensor.standing is Standing.NOT_CHECKED
    assert tensor.note.startswith("its experts have several shapes, [")


def test_an_expert_in_another_format_is_not_explained(models: Path, tmp_path: Path) -> None:
    master = load_file(models / "plain" / WEIGHTS)[f"{LAYER_2}.0.w2.weight"]
    other = quantize(master.float(), get_scheme("int4-g32-div7"))

    def mix(state: State) -> None:
        stem = f"{LAYER_2}.0.w2.weight"
        state[f"{stem}_packed"] = pack(other.codes, Layout.INT32_WORDS)
        state[f"{stem}_scale"] = other.scales.fill_(float("inf"))
        state[f"{stem}_shape"] = torch.tensor(other.shape)

    path = changed(models, "mxfp4-even", mix, tmp_path / "served")
    found = identify(path, master=models / "plain", match="layers.2.experts.down", threads=1)
    assert found.tensors[0].standing is Standing.PARTLY


def store_nvfp4(state: State, stem: str, source: Tensor) -> None:
    """Stores a matrix as compressed-tensors does: the divisor in place of the scale of the matrix."""
    q = quantize(source.float(), get_scheme("nvfp4"))
    assert q.second_scales is not None
    state[f"{stem}_packed"] = pack(q.codes, Layout.LOW_NIBBLE_FIRST)
    state[f"{stem}_scale"] = q.scales.view(torch.float8_e4m3fn)
    state[f"{stem}_global_scale"] = 1.0 / q.second_scales


def test_one_stale_expert_is_named_though_the_divisor_of_a_scale_is_stored(models: Path, tmp_path: Path) -> None:
    def widen(state: State) -> None:
        rng = torch.Generator().manual_seed(5)
        for key in state:
            if key.startswith(LAYER_2):
                state[key] = state[key].float() * (1 + 0.05 * torch.rand(state[key].shape, generator=rng))

    def serve(state: State) -> None:
        past = load_file(tmp_path / "earlier" / WEIGHTS)
        for stem in [key for key in state if key.startswith(LAYER_2)]:
            is_stale = stem.startswith(f"{LAYER_2}.3.w2")
            store_nvfp4(state, stem, past[stem] if is_stale else state[stem])
            del state[stem]

    changed(models, "plain", widen, tmp_path / "earlier")
    served = changed(models, "plain", serve, tmp_path / "served")
    earlier = (tmp_path / "earlier",)
    found = identify(served, master=models / "plain", earlier=earlier, match="layers.2.experts.*", threads=1)
    by_role = {tensor.name.rpartition(".")[2]: tensor for tensor in found.tensors}
    assert {role: tensor.standing for role, tensor in by_role.items()} == {
        "gate": Standing.EXPLAINED,
        "up": Standing.EXPLAINED,
        "down": Standing.MISMATCH,
    }
    assert by_role["down"].mismatch is not None and by_role["down"].mismatch.mismatch == "stale"


@pytest.mark.parametrize("multiplies", [False, True])
@pytest.mark.parametrize("factor", [1.0, 2.0, 0.5, 1.25])
def test_another_global_scale_is_not_explained(models: Path, tmp_path: Path, factor: float, multiplies: bool) -> None:
    def serve(state: State) -> None:
        for stem in [key for key in state if key.startswith(LAYER_2)]:
            source = state.pop(stem)
            store_nvfp4(state, stem, source)
            state[f"{stem}_global_scale"] /= factor
            if multiplies:
                state[stem] = state.pop(f"{stem}_packed")
                state[f"{stem}_scale_2"] = source.float().abs().amax() / 2688 * factor
                del state[f"{stem}_global_scale"]

    served = changed(models, "plain", serve, tmp_path / "served")
    found = identify(served, master=models / "plain", match="layers.2.experts.*", threads=1)
    assert found.exit_code is (ExitCode.PASS if factor == 1 else ExitCode.REJECTED) and len(found.tensors) == 3
    for tensor in found.tensors if factor != 1 else ():
        assert tensor.standing in (Standing.UNKNOWN, Standing.MISMATCH)
        assert tensor.mismatch is not None or f"is {factor:g} times that of nvfp4" in tensor.note


def test_up_under_the_global_scale_of_gate_is_not_explained(models: Path, tmp_path: Path) -> None:
    def serve(state: State) -> None:
        for stem in [key for key in state if key.startswith(LAYER_2)]:
            store_nvfp4(state, stem, state.pop(stem))
        for stem in [key for key in state if key.startswith(LAYER_2) and key.endswith(".w3.weight_global_scale")]:
            state[stem] = state[stem.replace(".w3.", ".w1.")].clone()

    served = changed(models, "plain", serve, tmp_path / "served")
    found = identify(served, master=models / "plain", match="layers.2.experts.*", threads=1)
    by_role = {tensor.name.rpartition(".")[2]: tensor for tensor in found.tensors}
    assert by_role["gate"].standing is by_role["down"].standing is Standing.EXPLAINED
    up = by_role["up"]
    assert up.standing is Standing.MISMATCH and up.mismatch is not None
    assert (up.mismatch.mismatch, up.mismatch.serve[:12]) == ("shared-scale", "that of gate")


def test_an_expert_that_is_not_served_leaves_its_tensors_partly_explained(models: Path, tmp_path: Path) -> None:
    def drop(state: State) -> None:
        for key in [key for key in state if key.startswith(f"{LAYER_2}.1.")]:
            del state[key]

    path = changed(models, "mxfp4-even", drop, tmp_path / "served")
    found = identify(path, master=models / "plain", match="layers.2.experts.*", threads=1)
    assert found.exit_code is ExitCode.REJECTED and len(found.tensors) == 3
    for tensor in found.tensors:
        assert tensor.standing is Standing.PARTLY and tensor.num_matrices == 5 and tensor.scheme == "mxfp4-even"
        assert tensor.note == "1 of its experts is not served, the first 1"


def test_facts_are_those_of_all_experts(models: Path, tmp_path: Path) -> None:
    def drop_signs(state: State, but: str) -> None:
        for key in [key for key in state if key.startswith(LAYER_2) and key.endswith("_packed")]:
            if but not in key:
                low, high = state[key] & 15, state[key] >> 4
                low[low == 8], high[high == 8] = 0, 0
                state[key] = low | high << 4

    for but, is_fact in (("none", True), (".experts.3.", False)):
        path = changed(models, "mxfp4-even", lambda state, but=but: drop_signs(state, but), tmp_path / but)  # type: ignore[misc]
        for tensor in identify(path, match="layers.2.experts.*", threads=1).tensors:
            assert tensor.evidence is not None and tensor.num_matrices == 6
            assert any("the sign of zero is dropped" in fact for fact in tensor.evidence.facts) is is_fact


def test_an_expert_without_codes_is_not_explained_by_those_of_the_others(models: Path, tmp_path: Path) -> None:
    plain = load_file(models / "plain" / WEIGHTS)

    def unpack(state: State) -> None:
        stem = f"{LAYER_2}.3.w2.weight"
        del state[f"{stem}_packed"], state[f"{stem}_scale"]
        state[stem] = plain[stem]

    path = changed(models, "mxfp4-ceil", unpack, tmp_path / "served")
    (tensor,) = identify(path, match="layers.2.experts.down", threads=1).tensors
    assert tensor.standing is Standing.UNKNOWN and tensor.num_matrices == 6
    assert tensor.note == "1 of its experts is served without codes, the first 3"
