"""Faults of single tensors of a layer are named with these tensors; layer sets and rules by what they are."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from quantaudit.core.comparison import Comparison, Diagnosis
from quantaudit.core.identification import Standing
from quantaudit.identity.compare_paths import compare
from quantaudit.identity.identify_paths import identify
from quantaudit.numerics import fake_quantize, get_scheme
from tests.identity.test_layouts import in_module, mxfp4_parts, weight, write

EXPERTS = 2
SHAPES = {"gate": (64, 128), "up": (64, 128), "down": (128, 64)}
MXFP4 = get_scheme("mxfp4-even")
State = dict[str, Tensor]
Packed = dict[tuple[int, str], State]


def module(expert: int, name: str) -> str:
    return f"model.layers.0.mlp.experts.{expert}.{name}_proj"


def masters() -> dict[tuple[int, str], Tensor]:
    keys = [(e, name) for e in range(EXPERTS) for name in SHAPES]
    return {(e, name): weight(*SHAPES[name], seed=i) for i, (e, name) in enumerate(keys)}


def packed() -> Packed:
    return {key: mxfp4_parts(one) for key, one in masters().items()}


def state(parts: Packed) -> State:
    return {name: part for key, one in parts.items() for name, part in in_module(one, module(*key)).items()}


def plain(values: dict[tuple[int, str], Tensor]) -> State:
    return {f"{module(*key)}.weight": one for key, one in values.items()}


def swap_nibbles(one: State) -> State:
    return {**one, "weight_packed": one["weight_packed"] << 4 | one["weight_packed"] >> 4}


def transpose_scales(one: State) -> State:
    scales = one["weight_scale"]
    return {**one, "weight_scale": scales.t().reshape(scales.shape)}


def swapped_and_transposed() -> Packed:
    found = packed()
    for e in range(EXPERTS):
        found[e, "gate"], found[e, "up"] = found[e, "up"], found[e, "gate"]
        found[e, "down"] = transpose_scales(found[e, "down"])
    return found


def compared(tmp_path: Path, a: State, b: State) -> Comparison:
    return compare(write(tmp_path / "a.safetensors", a), write(tmp_path / "b.safetensors", b), threads=1)


def short(found: Comparison) -> dict[str, tuple[float, tuple[str, ...]]]:
    return {one.mismatch: (one.explains, tuple(n.rpartition(".")[2] for n in one.tensors)) for one in found.diagnosis}


def test_two_faults_of_a_layer_are_named_with_their_own_tensors(tmp_path: Path) -> None:
    found = compared(tmp_path, state(packed()), state(swapped_and_transposed()))
    assert short(found) == {"swapped-gate-up": (1.0, ("gate", "up")), "transposed-scales": (1.0, ("down",))}


def test_faults_of_single_experts_in_two_tensors_are_named_with_these(tmp_path: Path) -> None:
    other = packed()
    other[0, "gate"] = swap_nibbles(other[0, "gate"])
    other[1, "down"] = {**other[1, "down"], "weight_scale": other[1, "down"]["weight_scale"] - 3}
    found = compared(tmp_path, state(packed()), state(other))
    assert short(found) == {"exponent-offset": (1.0, ("down",)), "nibble-order": (1.0, ("gate",))}


def test_what_nothing_explains_beside_a_fault_is_not_claimed(tmp_path: Path) -> None:
    other = packed()
    generator = torch.Generator().manual_seed(4)
    for e in range(EXPERTS):
        other[e, "gate"], other[e, "up"] = swap_nibbles(other[e, "gate"]), swap_nibbles(other[e, "up"])
        codes = other[e, "down"]["weight_packed"]
        other[e, "down"]["weight_packed"] = torch.randint(0, 256, codes.shape, generator=generator).to(torch.uint8)
    found = compared(tmp_path, state(packed()), state(other))
    assert short(found)["nibble-order"] == (1.0, ("gate", "up"))
    assert all("down" not in names for share, names in short(found).values() if share)


def test_identify_names_two_faults_with_their_own_tensors(tmp_path: Path) -> None:
    served = write(tmp_path / "served.safetensors", state(swapped_and_transposed()))
    found = identify(served, master=write(tmp_path / "hi.safetensors", plain(masters())), threads=1)
    named = {t.name.rpartition(".")[2]: t for t in found.tensors}
    assert {name: t.mismatch.mismatch for name, t in named.items() if t.mismatch is not None} == {
        "down": "transposed-scales",
        "gate": "swapped-gate-up",
        "up": "swapped-gate-up",
    }
    assert {(t.standing, t.explains) for t in named.values()} == {(Standing.MISMATCH, 1.0)}


def test_what_is_not_convincing_is_a_hint_and_no_mismatch(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(6)
    other = packed()
    for one in other.values():  # of every group the scale is another, by no constant
        moved = torch.randint(1, 4, one["weight_scale"].shape, generator=generator)
        one["weight_scale"] = (one["weight_scale"].int() + moved).to(torch.uint8)
    served = write(tmp_path / "served.safetensors", state(other))
    found = identify(served, master=write(tmp_path / "hi.safetensors", plain(masters())), threads=1)
    assert all(t.mismatch is None and t.standing in (Standing.UNKNOWN, Standing.PARTLY) for t in found.tensors)
    assert all(t.runner_up is not None and t.runner_up.explains < 0.5 for t in found.tensors)


def test_a_fault_of_one_expert_beside_unrelated_noise_is_a_mismatch(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(9)
    other = packed()
    for one in other.values():
        is_other = torch.rand(one["weight_packed"].shape, generator=generator) < 0.6
        one["weight_packed"] = torch.where(is_other, one["weight_packed"] ^ 0x11, one["weight_packed"])
    other[1, "up"] = swap_nibbles(packed()[1, "up"])
    served = write(tmp_path / "served.safetensors", state(other))
    found = identify(served, master=write(tmp_path / "hi.safetensors", plain(masters())), threads=1)
    named = {t.name.rpartition(".")[2]: t.mismatch for t in found.tensors}
    assert named["up"] is not None and named["up"].mismatch == "nibble-order" and 0.5 < named["up"].explains < 1
    assert named["gate"] is None and named["down"] is None


def test_every_scale_byte_one_too_large_is_an_offset(tmp_path: Path) -> None:
    other = packed()
    for one in other.values():
        one["weight_scale"] = one["weight_scale"] + 1
    served = write(tmp_path / "served.safetensors", state(other))
    found = identify(served, master=write(tmp_path / "hi.safetensors", plain(masters())), threads=1)
    assert {t.standing for t in found.tensors} == {Standing.MISMATCH}
    assert {(t.mismatch.mismatch, t.mismatch.serve) for t in found.tensors if t.mismatch is not None} == {
        ("exponent-offset", "every byte 1 too large")
    }


DOWN = "layers.0.experts.down"


def partly_packed(others: State) -> tuple[State, State]:
    """Two servers of one model: all of it packed, and down left plain, the others as given."""
    down = {key: one for key, one in masters().items() if key[1] == "down"}
    return state(packed()), {**others, **plain(down)}


def test_a_layer_left_plain_beside_packed_ones_is_a_layer_set(tmp_path: Path) -> None:
    full, left_out = partly_packed(state({key: one for key, one in packed().items() if key[1] != "down"}))
    made = "quantized by mxfp4-even"
    assert _layer_set(compared(tmp_path, full, left_out)) == ("K10", "skipped-layer", made, "unquantized")
    assert _layer_set(compared(tmp_path, left_out, full)) == ("K10", "included-layer", "unquantized", made)


def test_a_layer_left_plain_beside_fake_quantized_ones_is_a_layer_set(tmp_path: Path) -> None:
    fake = {key: fake_quantize(one, MXFP4) for key, one in masters().items() if key[1] != "down"}
    full, left_out = partly_packed(plain(fake))
    assert _layer_set(compared(tmp_path, left_out, full))[:2] == ("K10", "included-layer")


def test_a_whole_master_is_no_layer_set_whatever_is_zero(tmp_path: Path) -> None:
    values = {**masters(), (0, "gate"): torch.zeros(SHAPES["gate"]), (1, "gate"): torch.zeros(SHAPES["gate"])}
    served = state({key: mxfp4_parts(one) for key, one in values.items()})
    found = compared(tmp_path, plain(values), served)
    assert [(one.kind, one.mismatch) for one in found.diagnosis] == [("rule", "mxfp4-even")]


def _layer_set(found: Comparison) -> tuple[str, str, str, str]:
    one: Diagnosis
    (one,) = found.diagnosis
    assert one.tensors == (DOWN,) and one.field == "rules.layers" and one.explains == 1.0
    return one.kind, one.mismatch, one.train, one.serve


def test_two_number_formats_are_other_rules_and_no_flavour_of_fp8(tmp_path: Path) -> None:
    master = plain(masters())
    sides = [
        {name: fake_quantize(one, get_scheme(scheme)) for name, one in master.items()}
        for scheme in ("int4-g32-div7", "nvfp4")
    ]
    paths = [write(tmp_path / f"{i}.safetensors", side) for i, side in enumerate(sides)]
    found = compare(*paths, master=write(tmp_path / "hi.safetensors", master), threads=1)
    assert {(one.kind, one.mismatch) for one in found.diagnosis} == {("rule", "rules-differ")}
    assert all(one.field.startswith("element") for one in found.diagnosis)
