"""Two checkpoints compared: every verdict class, the first difference in bits, and equal values across layouts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from quantaudit.core.comparison import Comparison, TensorClass
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.core.verdict import ExitCode
from quantaudit.identity.compare_matrix import ulps_between
from quantaudit.identity.compare_paths import compare
from quantaudit.numerics import fake_quantize, get_scheme, pack, quantize
from tests.checkpoint.tiny import save
from tests.identity.test_layouts import MODULE, STACK, in_module, mxfp4_parts, weight, write

NAMES = {"hf": "model.layers.2.mlp.experts.{}.{}", "k3": "language_model.model.layers.2.block_sparse_moe.experts.{}.{}"}
ROLES = {"hf": ("gate_proj", "up_proj", "down_proj"), "k3": ("w1", "w3", "w2")}


def pair(tmp_path: Path, a: dict[str, Tensor], b: dict[str, Tensor], *, by_bytes: bool = False) -> Comparison:
    """Compares two files of one module each."""
    left = write(tmp_path / "a.safetensors", in_module(a))
    right = write(tmp_path / "b.safetensors", in_module(b))
    return compare(left, right, by_bytes=by_bytes, threads=1)


def changed(tensor: Tensor, at: tuple[int, ...], value: int | float) -> Tensor:
    """Returns a copy with one element replaced."""
    other = tensor.clone()
    other[at] = value
    return other


def test_equal_bytes_are_identical(tmp_path: Path) -> None:
    parts = mxfp4_parts(weight())
    found = pair(tmp_path, parts, parts, by_bytes=True)
    assert found.identical and found.exit_code is ExitCode.PASS
    assert found.classes == {STACK: TensorClass.BYTE_EQUAL} and found.tensors[0].first is None


def test_one_code_is_found_with_its_place_and_bits(tmp_path: Path) -> None:
    parts = mxfp4_parts(weight())
    byte = int(parts["weight_packed"][4, 17])
    other = {**parts, "weight_packed": changed(parts["weight_packed"], (4, 17), byte ^ 0x10)}
    found = pair(tmp_path, parts, other)
    (tensor,) = found.tensors
    assert found.exit_code is ExitCode.REJECTED and tensor.tensor_class is TensorClass.DIFFERENT_CODES
    assert tensor.differing.model_dump() == {"scales": 0, "codes": 1, "values": 1}
    first = tensor.first
    assert first is not None
    # Byte 17 holds codes 34 (low) and 35 (high); 35 is in the second group of 32.
    assert (first.expert, first.coordinate, first.group) == (1, (4, 35), 1)
    assert (first.a_code, first.b_code) == (byte >> 4, byte >> 4 ^ 1)
    assert first.a.bits != first.b.bits and first.a.value != first.b.value


def test_other_scales_of_equal_codes_are_named(tmp_path: Path) -> None:
    parts = mxfp4_parts(weight())
    scale = int(parts["weight_scale"][2, 1])
    other = {**parts, "weight_scale": changed(parts["weight_scale"], (2, 1), scale + 1)}
    (tensor,) = pair(tmp_path, parts, other).tensors
    assert tensor.tensor_class is TensorClass.DIFFERENT_SCALES
    assert tensor.differing.scales == 1 and tensor.differing.codes == 0
    assert tensor.first is not None and tensor.first.a_scale is not None and tensor.first.b_scale is not None
    assert tensor.first.b_scale.value == 2 * tensor.first.a_scale.value == 2.0 ** (scale + 1 - 127)


def test_another_encoding_of_equal_values_differs_in_bytes_only(tmp_path: Path) -> None:
    # A block [4, 0, ...] is code 6 (4.0) under 2^0 and code 4 (2.0) under 2^1.
    codes = torch.zeros(1, 32, dtype=torch.uint8)
    low, high = changed(codes, (0, 0), 6), changed(codes, (0, 0), 4)
    layout = get_scheme("mxfp4-even").layout
    a = {"weight_packed": pack(low, layout), "weight_scale": torch.tensor([[127]], dtype=torch.uint8)}
    b = {"weight_packed": pack(high, layout), "weight_scale": torch.tensor([[128]], dtype=torch.uint8)}
    assert pair(tmp_path, a, b).identical
    found = pair(tmp_path, a, b, by_bytes=True)
    assert found.classes == {STACK: TensorClass.VALUE_EQUAL} and found.exit_code is ExitCode.REJECTED
    assert found.tensors[0].differing.model_dump() == {"scales": 1, "codes": 1, "values": 0}


def test_minus_zero_is_zero(tmp_path: Path) -> None:
    a = {"weight": torch.zeros(2, 32)}
    found = pair(tmp_path, a, {"weight": changed(a["weight"], (1, 3), -0.0)})
    assert found.identical and found.classes == {STACK: TensorClass.VALUE_EQUAL}


@pytest.mark.parametrize("rule", ["mxfp4-even", "int4-g32-div7"])
def test_a_fake_quantized_tensor_equals_what_it_was_packed_from(rule: str, tmp_path: Path) -> None:
    x, scheme = weight(), get_scheme(rule)
    q = quantize(x, scheme)
    packed = {"weight_packed": pack(q.codes, scheme.layout), "weight_scale": q.scales}
    found = pair(tmp_path, {"weight": fake_quantize(x, scheme)}, packed)
    assert found.identical and found.classes == {STACK: TensorClass.VALUE_EQUAL}


def test_a_fake_quantized_tensor_of_another_scale_rule_has_other_scales(tmp_path: Path) -> None:
    x = weight(64, 256)
    train, serve = fake_quantize(x, get_scheme("mxfp4-floor")), mxfp4_parts(x, "mxfp4-rceil")
    (tensor,) = pair(tmp_path, {"weight": train}, serve).tensors
    assert tensor.tensor_class is TensorClass.DIFFERENT_SCALES and "fake-quantized" in tensor.note
    # floor and rceil choose other scales in about .41 of the groups; where the values are equal all the same, or the
    # group still lies on the other scale, that does not show.
    assert tensor.differing.scales is not None and 0 < tensor.differing.scales <= 0.6 * 64 * 8


def test_a_fake_quantized_tensor_with_other_ties_has_other_codes(tmp_path: Path) -> None:
    x = torch.zeros(1, 32)
    x[0, :2] = torch.tensor([6.0, 0.25])
    train = fake_quantize(x, get_scheme("mxfp4-even-away"))
    (tensor,) = pair(tmp_path, {"weight": train.bfloat16()}, mxfp4_parts(x)).tensors
    assert tensor.tensor_class is TensorClass.DIFFERENT_CODES
    assert tensor.differing.model_dump() == {"scales": 0, "codes": 1, "values": 1}
    assert tensor.first is not None and (tensor.first.a.value, tensor.first.b.value) == (0.5, 0.0)


@pytest.mark.parametrize("rule", ["mxfp4-rceil", "mxfp4-even-away", "fp8-block128", "mxfp8-e4m3-floor"])
def test_the_rule_that_quantized_a_master_is_named(rule: str, tmp_path: Path) -> None:
    x, scheme = weight(130, 160), get_scheme(rule)
    q = quantize(x, scheme)
    if scheme.element.bits == 4:
        packed = {"weight_packed": pack(q.codes, scheme.layout), "weight_scale": q.scales}
    else:
        packed = {"weight": q.codes.view(torch.float8_e4m3fn), "weight_scale": q.scales}
    found = pair(tmp_path, {"weight": x}, packed)
    assert found.classes == {STACK: TensorClass.QUANTIZATION} and found.exit_code is ExitCode.REJECTED
    (diagnosis,) = found.diagnosis
    assert (diagnosis.mismatch, diagnosis.explains, diagnosis.tensors) == (rule, 1.0, (STACK,))


def test_codes_of_another_master_are_not_explained(tmp_path: Path) -> None:
    found = pair(tmp_path, {"weight": weight()}, mxfp4_parts(weight(seed=1)))
    assert found.classes == {STACK: TensorClass.LAYER_SET}
    assert all(diagnosis.explains < 1 for diagnosis in found.diagnosis)


def test_a_bf16_export_of_an_fp32_master_is_an_ulp_away(tmp_path: Path) -> None:
    master = weight(dtype=torch.float32)
    found = pair(tmp_path, {"weight": master}, {"weight": master.bfloat16()})
    assert found.classes == {STACK: TensorClass.WITHIN_ULPS} and found.tensors[0].max_ulps == 1
    assert found.exit_code is ExitCode.REJECTED


def test_ulps_count_across_zero_and_binades() -> None:
    one, tiny = torch.tensor([1.0]), torch.tensor([2.0**-149])
    assert ulps_between(torch.nextafter(one, torch.tensor(0.0)), torch.nextafter(one, torch.tensor(2.0))) == 2
    assert ulps_between(tiny, -tiny) == 2 and ulps_between(torch.tensor([0.0]), torch.tensor([-0.0])) == 0
    assert ulps_between(torch.tensor([1.0]).bfloat16(), torch.tensor([1.0 + 2**-6]).bfloat16()) == 2


NON_FINITE: dict[str, dict[str, int | float]] = {
    "a NaN scale": {"weight_scale": 255},
    "an infinite number": {"weight": float("inf")},
    "a NaN number": {"weight": float("nan")},
}


@pytest.mark.parametrize("name", NON_FINITE)
def test_what_is_not_finite_is_said_even_if_both_sides_have_it(name: str, tmp_path: Path) -> None:
    ((part, value),) = NON_FINITE[name].items()
    parts = mxfp4_parts(weight()) if part == "weight_scale" else {"weight": weight()}
    parts = {**parts, part: changed(parts[part], (3, 0), value)}
    found = pair(tmp_path, parts, parts)
    assert found.classes == {STACK: TensorClass.NON_FINITE} and not found.identical
    assert f"{32 if part == 'weight_scale' else 1} values of the first side" in found.tensors[0].note
    first = found.tensors[0].first
    assert first is not None and first.coordinate == (3, 0)
    assert Comparison.from_json(found.to_json()).counts == found.counts


def test_an_infinite_scale_is_not_finite(tmp_path: Path) -> None:
    x = weight(2, 32)
    q = quantize(x, get_scheme("int4-g32-div7"))
    scale = changed(q.scales, (1, 0), float("inf"))
    parts = {"weight_packed": pack(q.codes, get_scheme("int4-g32-div7").layout), "weight_scale": scale}
    assert pair(tmp_path, parts, parts).classes == {STACK: TensorClass.NON_FINITE}


def test_unknown_bytes_that_differ_are_not_checked(tmp_path: Path) -> None:
    a = write(tmp_path / "a.safetensors", {"x.qweight": torch.zeros(4, dtype=torch.int32)})
    b = write(tmp_path / "b.safetensors", {"x.qweight": torch.ones(4, dtype=torch.int32)})
    found = compare(a, b, threads=1)
    assert found.classes == {"x.qweight": TensorClass.NOT_CHECKED}
    assert found.exit_code is ExitCode.INCONCLUSIVE and not found.identical
    assert compare(a, a, threads=1).exit_code is ExitCode.PASS


def test_what_is_on_one_side_only_is_named_on_each_side(tmp_path: Path) -> None:
    common = in_module(mxfp4_parts(weight()))
    a = write(tmp_path / "a.safetensors", common | {"model.norm.weight": weight(1, 8)})
    b = write(tmp_path / "b.safetensors", common | {"lm_head.weight": weight(1, 8)})
    found = compare(a, b, threads=1)
    assert (found.only_a, found.only_b) == (("norm.weight",), ("lm_head.weight",))
    assert found.exit_code is ExitCode.REJECTED
    assert compare(a, b, match="*experts*", threads=1).identical


def test_an_expert_that_one_side_lacks_is_named(tmp_path: Path) -> None:
    both = in_module(mxfp4_parts(weight()))
    a = write(tmp_path / "a.safetensors", both | in_module(mxfp4_parts(weight()), MODULE.replace(".1.", ".3.")))
    b = write(tmp_path / "b.safetensors", both)
    (tensor,) = compare(a, b, threads=1).tensors
    assert tensor.tensor_class is TensorClass.LAYER_SET and "expert 3 is only on the first side" in tensor.note
    assert (tensor.num_matrices, tensor.num_different) == (2, 1)


def test_another_shape_is_said(tmp_path: Path) -> None:
    (tensor,) = pair(tmp_path, {"weight": weight(4, 32)}, {"weight": weight(4, 64)}).tensors
    assert tensor.tensor_class is TensorClass.DIFFERENT_SHAPE
    assert "[4, 32] on the first side, [4, 64] on the second" in tensor.note


def test_no_common_name_measures_nothing(tmp_path: Path) -> None:
    a = write(tmp_path / "a.safetensors", {"x": weight(1, 8)})
    b = write(tmp_path / "b.safetensors", {"y": weight(1, 8)})
    with pytest.raises(NotMeasuredError, match=r"'x'.*'y'"):
        compare(a, b, threads=1)


def test_coordinates_are_those_of_the_tensor_whatever_its_rank(tmp_path: Path) -> None:
    x = torch.randn(3, 4, 5)
    a = write(tmp_path / "a.safetensors", {"conv": x, "scalar": torch.tensor(1.0), "bias": torch.ones(7)})
    other = {"conv": changed(x, (2, 1, 3), 9.0), "scalar": torch.tensor(2.0), "bias": changed(torch.ones(7), (6,), 3)}
    found = compare(a, write(tmp_path / "b.safetensors", other), threads=1)
    places = {t.name: t.first.coordinate for t in found.tensors if t.first is not None}
    assert places == {"conv": (2, 1, 3), "scalar": (), "bias": (6,)}


def k3_and_hf(tmp_path: Path) -> tuple[Path, Path, dict[str, Tensor]]:
    """Writes three experts of one layer under the names of K3 and of others."""
    files = {kind: dict[str, Tensor]() for kind in NAMES}
    masters: dict[str, Tensor] = {}
    for expert in range(3):
        for number, shape in enumerate(((8, 64), (8, 64), (64, 32))):
            x = weight(*shape, seed=10 * expert + number)
            for kind, tensors in files.items():
                stem = NAMES[kind].format(expert, ROLES[kind][number])
                tensors |= in_module(mxfp4_parts(x), stem)
                if kind == "hf":
                    masters[stem] = x
    return write(tmp_path / "k3.safetensors", files["k3"]), write(tmp_path / "hf.safetensors", files["hf"]), masters


def test_layouts_of_one_quantized_model_are_equal(tmp_path: Path) -> None:
    k3, hf, masters = k3_and_hf(tmp_path)
    found = compare(k3, hf, by_bytes=True, threads=1)
    assert found.identical and len(found.tensors) == 3 and found.counts == {TensorClass.BYTE_EQUAL: 3}
    gate = torch.stack([masters[NAMES["hf"].format(e, "gate_proj")] for e in range(3)])
    up = torch.stack([masters[NAMES["hf"].format(e, "up_proj")] for e in range(3)])
    down = torch.stack([masters[NAMES["hf"].format(e, "down_proj")] for e in range(3)])
    scheme, tensors = get_scheme("mxfp4-even"), dict[str, Tensor]()
    for name, x in (("gate_up_proj", torch.stack([gate, up], 2).flatten(1, 2)), ("down_proj", down)):
        q = quantize(x, scheme)
        tensors[f"model.layers.2.mlp.experts.{name}_blocks"] = pack(q.codes, scheme.layout).unflatten(-1, (-1, 16))
        tensors[f"model.layers.2.mlp.experts.{name}_scales"] = q.scales
    oss = write(tmp_path / "oss.safetensors", tensors)
    assert compare(k3, oss, by_bytes=True, threads=1).identical


def test_a_gguf_file_of_equal_values_is_equal(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    _, hf, masters = k3_and_hf(tmp_path)
    writer, number = gguf.GGUFWriter(tmp_path / "model.gguf", "x"), gguf.GGMLQuantizationType.MXFP4
    for role, name in (("gate_proj", "gate"), ("up_proj", "up"), ("down_proj", "down")):
        x = torch.stack(
            [fake_quantize(masters[NAMES["hf"].format(e, role)], get_scheme("mxfp4-even")) for e in range(3)]
        )
        stored = gguf.quants.quantize(x.float().numpy(), number)
        writer.add_tensor(f"blk.2.ffn_{name}_exps.weight", stored, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = compare(hf, tmp_path / "model.gguf", threads=1)
    assert found.identical and set(found.counts) == {TensorClass.VALUE_EQUAL}


def test_folders_of_k3_are_compared(tmp_path: Path) -> None:
    scheme = get_scheme("mxfp4-even")
    plain, packed = save(tmp_path / "plain"), save(tmp_path / "packed", scheme=scheme)
    sharded, other = save(tmp_path / "sharded", scheme=scheme, shard_bytes=20_000), save(tmp_path / "other", seed=1)
    assert compare(packed, sharded, by_bytes=True, threads=1).identical
    made = compare(plain, packed, threads=1)
    assert made.counts == {TensorClass.BYTE_EQUAL: 118, TensorClass.QUANTIZATION: 6}
    assert [(d.mismatch, d.explains) for d in made.diagnosis] == [("mxfp4-even", 1.0)]
    assert compare(plain, other, threads=1).counts == {TensorClass.DIFFERENT_VALUES: 124}


def test_a_path_against_itself_says_so(tmp_path: Path) -> None:
    path = save(tmp_path / "plain")
    assert compare(path, path, threads=1).notes == ("both sides are one path, so nothing else could be found",)


def test_a_wrong_number_of_threads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="0 threads"):
        compare(tmp_path, tmp_path, threads=0)


@pytest.mark.parametrize("is_plain", [False, True])
def test_experts_of_several_shapes_have_another_shape(is_plain: bool, tmp_path: Path) -> None:
    first, turned = weight(32, 64), weight(64, 32)
    other = MODULE.replace(".1.", ".3.")
    mine = in_module({"weight": first}) if is_plain else in_module(mxfp4_parts(first))
    mine |= in_module({"weight": first} if is_plain else mxfp4_parts(first), other)
    a = write(tmp_path / "a.safetensors", mine)
    b = write(tmp_path / "b.safetensors", in_module(mxfp4_parts(first)) | in_module(mxfp4_parts(turned), other))
    for one, two in ((a, b), (b, a)):
        (tensor,) = compare(one, two, threads=1).tensors
        assert tensor.tensor_class is TensorClass.DIFFERENT_SHAPE
