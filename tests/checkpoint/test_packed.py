"""Experts in every packed format: written, read back code by code, and decoded by the library that defines it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quantaudit.checkpoint.digest import digest_checkpoint, digest_parameters
from quantaudit.checkpoint.load import load_model
from quantaudit.checkpoint.names import ExpertStack, Role
from quantaudit.checkpoint.packed import NVFP4, PackedFormat
from quantaudit.checkpoint.packed_tensors import (
    can_divide,
    decode_parts,
    encode_parts,
    find_divisor,
    find_multiplier,
    packing_of,
)
from quantaudit.checkpoint.precision import inspect_checkpoint
from quantaudit.checkpoint.reader import Checkpoint, open_checkpoint
from quantaudit.core.errors import InputError
from quantaudit.core.format import E4M3
from quantaudit.core.serial import Json
from quantaudit.numerics import QuantizedTensor, dequantize, get_scheme, quantize
from quantaudit.numerics.rounding import decode
from tests.checkpoint.packed_files import (
    SCHEMES,
    STACKS,
    copy_of,
    files_of,
    quantized_stacks,
    with_divisors,
    write_packed,
    written_once,
)
from tests.checkpoint.tiny import LAYER_2, TINY, WEIGHTS, edit_json, edit_tensors, random_state

Tensors = dict[str, tuple[str, list[int], bytes]]
GATE = ExpertStack(2, Role.GATE)


def read_stack(checkpoint: Checkpoint, stack: ExpertStack) -> QuantizedTensor:
    """Returns a stack that is packed."""
    read = checkpoint.expert_stack(*stack)
    assert isinstance(read, QuantizedTensor)
    return read


@pytest.mark.parametrize("shard_bytes", [None, 20_000])
@pytest.mark.parametrize("name", SCHEMES)
def test_codes_scales_and_values_come_back(name: str, shard_bytes: int | None, tmp_path: Path) -> None:
    stacks = quantized_stacks(name)
    folder = write_packed(tmp_path / "c", stacks, shard_bytes=shard_bytes) if shard_bytes else written_once(name)
    checkpoint = open_checkpoint(folder)
    assert set(checkpoint.packed_stacks()) == set(STACKS)
    for stack, wanted in stacks.items():
        read = read_stack(checkpoint, stack)
        assert torch.equal(read.codes, wanted.codes) and read.shape == wanted.shape
        assert read.scheme.element == wanted.scheme.element
        assert torch.equal(dequantize(read, torch.float32), dequantize(wanted, torch.float32))
        if wanted.second_scales is not None:
            assert read.second_scales is not None and torch.equal(read.second_scales, wanted.second_scales)
        assert torch.equal(checkpoint.decoded_stack(*stack).float(), dequantize(wanted, torch.float32))


@pytest.mark.parametrize("name", SCHEMES)
def test_the_model_of_packed_experts_has_their_exact_values(name: str) -> None:
    stacks = quantized_stacks(name)
    model = load_model(open_checkpoint(written_once(name)))
    for stack, wanted in stacks.items():
        assert torch.equal(model.get_parameter(stack.parameter).float(), dequantize(wanted, torch.float32))


@pytest.mark.parametrize("name", SCHEMES)
def test_the_configuration_declares_what_is_stored(name: str) -> None:
    precision = inspect_checkpoint(written_once(name))
    assert precision.as_declared and precision.declared is SCHEMES[name] and precision.num_packed == 36
    bits = get_scheme(name).element.bits
    assert bits < precision.bits_per_weight < bits + 4.1  # scales, and for integers 128 bits of a shape in 2,048 codes


@pytest.mark.parametrize("name", SCHEMES)
def test_a_digest_is_that_of_the_files(name: str) -> None:
    stacks = quantized_stacks(name)
    digest = digest_checkpoint(open_checkpoint(written_once(name)))
    state = dict[str, Tensor | QuantizedTensor](random_state()) | {s.parameter: q for s, q in stacks.items()}
    assert digest == digest_parameters(state.items(), TINY)


# The scheme of compressed-tensors that its own loader makes of the configuration, and its own decoding of the files.
CT_SCHEMES = [name for name, form in SCHEMES.items() if form is not PackedFormat.MODELOPT_NVFP4]


def decoded_by_library(checkpoint: Checkpoint, stack: ExpertStack, expert: int) -> Tensor:
    """Returns what compressed-tensors makes of an expert's tensors under the checkpoint's own configuration."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    from compressed_tensors.utils.match import match_name

    values = json.loads((checkpoint.path / "config.json").read_text())["text_config"]["quantization_config"]
    config = QuantizationConfig.model_validate(values)
    name = f"{LAYER_2.replace('layers.2', f'layers.{stack.layer}')}.{expert}.{stack.role}"
    (scheme,) = (
        group
        for group in config.config_groups.values()
        if group.targets == ["Linear"] or any(match_name(name, target) for target in group.targets)
    )
    compressor = BaseCompressor.get_value_from_registry(scheme.format)
    decoded: Tensor = compressor.decompress(files_of(checkpoint, stack, expert), scheme)["weight"]
    return decoded


@pytest.mark.parametrize("name", CT_SCHEMES)
def test_compressed_tensors_decodes_the_files_to_our_values(name: str) -> None:
    pytest.importorskip("compressed_tensors")
    stacks = quantized_stacks(name)
    checkpoint = open_checkpoint(written_once(name))
    for stack, q in stacks.items():
        ours = dequantize(q, torch.float32)
        for expert in (0, 5):
            theirs = decoded_by_library(checkpoint, stack, expert)
            assert torch.equal(theirs, ours[expert].to(theirs.dtype))


@pytest.mark.parametrize("name", ["int2-g32", "int3-g32", "int4-g32-div7.5", "int8-channel", "fp8-block128"])
def test_scales_that_fit_no_bf16_are_decoded_in_fp32(name: str) -> None:
    pytest.importorskip("compressed_tensors")
    checkpoint = open_checkpoint(written_once(name))
    assert decoded_by_library(checkpoint, GATE, 0).dtype is torch.float32


def test_scales_computed_in_bf16_are_stored_in_bf16() -> None:
    checkpoint = open_checkpoint(written_once("int4-g32-div7.5-native"))
    assert files_of(checkpoint, GATE, 0)["weight_scale"].dtype is torch.bfloat16


@pytest.mark.parametrize("name", CT_SCHEMES)
def test_compressed_tensors_packs_our_codes_into_our_bytes(name: str) -> None:
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    q = quantized_stacks(name)[GATE]
    files = files_of(open_checkpoint(written_once(name)), GATE, 3)
    element = q.scheme.element
    if SCHEMES[name] is PackedFormat.INTEGERS:
        assert torch.equal(files["weight_packed"], pack_to_int32(q.codes[3], element.bits))
        assert files["weight_shape"].tolist() == list(q.codes[3].shape)
    elif SCHEMES[name] is PackedFormat.MXFP4:
        assert torch.equal(files["weight_packed"], pack_fp4_to_uint8(decode(q.codes[3], element)))
    else:
        assert torch.equal(files["weight"].float(), decode(q.codes[3], element))


def test_nvfp4_is_written_as_compressed_tensors_where_divisors_hold_its_scales(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    stacks = with_divisors(copy.deepcopy(quantized_stacks("nvfp4")))
    assert all(can_divide(q) for q in stacks.values())
    checkpoint = open_checkpoint(write_packed(tmp_path / "c", stacks, nvfp4=NVFP4))
    assert checkpoint.precision.declared is PackedFormat.NVFP4 and checkpoint.precision.as_declared
    for stack, q in stacks.items():
        read = read_stack(checkpoint, stack)
        assert torch.equal(read.codes, q.codes) and torch.equal(read.scales, q.scales)
        assert q.second_scales is not None and read.second_scales is not None
        assert torch.equal(read.second_scales, q.second_scales)
        for expert in range(6):
            theirs = decoded_by_library(checkpoint, stack, expert)
            assert torch.equal(theirs, dequantize(q, torch.float32)[expert].to(theirs.dtype))


def test_modelopt_decodes_nvfp4_files_to_our_values() -> None:
    qtensor = pytest.importorskip("modelopt.torch.quantization.qtensor")
    checkpoint = open_checkpoint(written_once("nvfp4"))
    for stack, q in quantized_stacks("nvfp4").items():
        files = files_of(checkpoint, stack, 4)
        packed = qtensor.NVFP4QTensor(q.shape[1:], torch.float32, files["weight"])
        theirs = packed.dequantize(
            scale=files["weight_scale"], double_scale=files["weight_scale_2"], block_sizes={-1: 16}
        )
        assert torch.equal(theirs, dequantize(q, torch.float32)[4])


def test_nvfp4_whose_scales_no_divisor_holds_is_not_rounded(tmp_path: Path) -> None:
    stacks = quantized_stacks("nvfp4")
    assert not all(can_divide(q) for q in stacks.values())
    with pytest.raises(InputError, match=r"an upper scale of .*; write it as modelopt-nvfp4"):
        write_packed(tmp_path / "c", stacks, nvfp4=NVFP4)
    assert list(tmp_path.iterdir()) == []


def test_a_divisor_without_a_multiplier_is_folded_into_the_scales(tmp_path: Path) -> None:
    stacks = with_divisors(copy.deepcopy(quantized_stacks("nvfp4")))
    folder = write_packed(tmp_path / "c", stacks, nvfp4=NVFP4)
    divisor = torch.tensor([1.7e4 + 0.123], dtype=torch.float32)
    name = f"{LAYER_2}.1.w1.weight_global_scale"
    edit_tensors(folder / WEIGHTS, lambda t: t.update({name: ("F32", [1], divisor.numpy().tobytes())}))
    q = stacks[GATE]
    assert find_multiplier(divisor, q.scales[1]) is None, "else another divisor has to be planted"
    read = read_stack(open_checkpoint(folder), GATE)
    assert torch.equal(read.codes, q.codes) and read.second_scales is None
    folded = (decode(q.scales[1], E4M3) / divisor).repeat_interleave(16, dim=1)
    values = dequantize(read, torch.float32)
    assert torch.equal(values[1], decode(q.codes[1], q.scheme.element) * folded)
    assert torch.equal(values[0], dequantize(q, torch.float32)[0])


def test_divisors_and_multipliers_are_each_others() -> None:
    scales = torch.arange(1, 127, dtype=torch.int16).to(torch.uint8)
    generator = torch.Generator().manual_seed(0)
    found = 0
    for _ in range(200):
        multiplier = torch.exp2(torch.rand(1, generator=generator) * 20 - 15)
        divisor = find_divisor(multiplier, scales)
        if divisor is not None:
            found += 1
            assert torch.equal(decode(scales, E4M3) / divisor, decode(scales, E4M3) * multiplier)
            back = find_multiplier(divisor, scales)
            assert back is not None and torch.equal(back, multiplier)
    assert 15 < found < 60  # one in six


def test_several_packings_are_declared_by_their_experts(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    stacks = dict(quantized_stacks("int2-g32"))
    for stack in (ExpertStack(2, Role.DOWN), ExpertStack(4, Role.UP)):
        stacks[stack] = quantized_stacks("int4-g32-div7.5")[stack]
    stacks[ExpertStack(4, Role.GATE)] = quantized_stacks("mxfp4-rceil")[ExpertStack(4, Role.GATE)]
    del stacks[GATE]
    checkpoint = open_checkpoint(write_packed(tmp_path / "c", stacks))
    assert checkpoint.precision.as_declared and checkpoint.precision.declared is PackedFormat.MIXED
    assert checkpoint.precision.num_packed == 30
    for stack, q in stacks.items():
        theirs = decoded_by_library(checkpoint, stack, 2)
        assert torch.equal(theirs, dequantize(q, torch.float32)[2].to(theirs.dtype))


@pytest.mark.parametrize("is_partial", [False, True])
def test_a_stack_left_out_is_a_finding_unless_it_is_meant_to_be(is_partial: bool, tmp_path: Path) -> None:
    stacks = {stack: q for stack, q in quantized_stacks("int3-g32").items() if stack != GATE}
    findings = inspect_checkpoint(write_packed(tmp_path / "c", stacks, is_partial=is_partial)).findings
    message = "The configuration declares pack-quantized, but 6 of 36 expert matrices are stored unquantized."
    assert findings == (() if is_partial else (message,))


@pytest.mark.parametrize(("name", "preset"), [("fp8-block128", "FP8_BLOCK"), ("fp8-channel", "FP8_DYNAMIC")])
def test_blocks_at_the_edge_are_partial(name: str, preset: str) -> None:
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import preset_name_to_scheme

    q = quantize(torch.randn(200, 300, generator=torch.Generator().manual_seed(1)), get_scheme(name))
    packing = packing_of(q.scheme)
    assert packing is not None
    parts = encode_parts(q, packing)
    codes = decode_parts(parts, packing, (200, 300), is_folded=False)
    assert torch.equal(codes.codes, q.codes) and torch.equal(codes.scales, q.scales)
    compressor = BaseCompressor.get_value_from_registry(packing.format.value)
    state = {part.value: tensor for part, tensor in parts.items()}
    theirs = compressor.decompress(state, preset_name_to_scheme(preset, ["Linear"]))["weight"]
    assert torch.equal(theirs, dequantize(q, torch.float32))


@pytest.mark.parametrize("name", ["nf4-b64", "mxfp6-e2m3-even", "mxfp8-e5m2-even", "nvfp4-single-level", "gguf-q8_0"])
def test_only_what_a_layout_holds_has_one(name: str) -> None:
    has_one = name == "gguf-q8_0"  # its fp16 scales are fp32 numbers
    assert (packing_of(get_scheme(name)) is not None) == has_one


def refused(folder: Path, change: Callable[[Tensors], object]) -> str:
    """Returns the message with which the changed checkpoint is refused, at the latest when its experts are read."""
    edit_tensors(folder / WEIGHTS, change)
    with pytest.raises(InputError) as caught:
        checkpoint = open_checkpoint(folder)
        checkpoint.expert_stack(*GATE)
    assert caught.value.expected and caught.value.fix
    return str(caught.value)


def put(part: str, dtype: str, shape: list[int], raw: bytes) -> Callable[[Tensors], object]:
    """Returns a change that puts a tensor of the first expert in another's place."""
    return lambda tensors: tensors.update({f"{LAYER_2}.0.w1.{part}": (dtype, shape, raw)})


NAN = b"\x00\x00\xc0\x7f"
DAMAGE: dict[str, tuple[str, Callable[[Tensors], object], str]] = {
    "words of another width": ("int3-g32", put("weight_packed", "I32", [32, 7], bytes(896)), "codes of 2, 3, 4, 8"),
    "words of a declared other": ("int3-g32", put("weight_packed", "I32", [32, 4], bytes(512)), "is packed as int2"),
    "words as bytes": ("int3-g32", put("weight_packed", "U8", [32, 24], bytes(768)), "w1"),
    "no scale": ("int3-g32", lambda t: t.pop(f"{LAYER_2}.0.w1.weight_scale"), "is stored as weight_packed and"),
    "no codes": ("int3-g32", lambda t: t.pop(f"{LAYER_2}.0.w1.weight_packed"), "is stored as weight_scale and"),
    "scales of another group": ("int3-g32", put("weight_scale", "F32", [32, 4], bytes(512)), "groups of 16"),
    "scales of no group": ("int3-g32", put("weight_scale", "F32", [32, 3], bytes(384)), "has the shape [32, 3]"),
    "scales of fewer rows": ("int3-g32", put("weight_scale", "F32", [31, 2], bytes(248)), "has the shape [31, 2]"),
    "scales in fp16": ("int3-g32", put("weight_scale", "F16", [32, 2], bytes(128)), "is stored as F16"),
    "scales that are NaN": ("int3-g32", put("weight_scale", "F32", [32, 2], NAN * 64), "64 values that are NaN"),
    "another shape stated": (
        "int3-g32",
        put("weight_shape", "I64", [2], (31).to_bytes(8, "little") + (64).to_bytes(8, "little")),
        "says [31, 64]; expected [32, 64]",
    ),
    "a shape of three": ("int3-g32", put("weight_shape", "I64", [3], bytes(24)), "has the shape [3]"),
    "no multiplier": ("nvfp4", lambda t: t.pop(f"{LAYER_2}.0.w1.weight_scale_2"), "w1"),
    "a multiplier a row": ("nvfp4", put("weight_scale_2", "F32", [32], bytes(128)), "has the shape [32]"),
    "an infinite multiplier": ("nvfp4", put("weight_scale_2", "F32", [], b"\x00\x00\x80\x7f"), "1 values that are NaN"),
    "block scales that are NaN": ("nvfp4", put("weight_scale", "F8_E4M3", [32, 4], b"\x7f" * 128), "NaN or infinite"),
    "block scales of 32": ("nvfp4", put("weight_scale", "F8_E4M3", [32, 2], bytes(64)), "has the shape [32, 2]"),
    "NaN codes": ("fp8-block128", put("weight", "F8_E4M3", [32, 64], b"\xff" * 2048), "2048 values that are NaN"),
    "a grid too large": ("fp8-block128", put("weight_scale", "F32", [2, 2], bytes(16)), "has the shape [2, 2]"),
    "whole numbers beside scales": (
        "fp8-block128",
        put("weight", "BF16", [32, 64], bytes(4096)),
        "is stored as weight",
    ),
    "two names of scales": ("fp8-block128", put("weight_scale_inv", "F32", [1, 1], bytes(4)), "is stored as weight"),
    "a transposed weight": ("fp8-block128", put("weight", "F8_E4M3", [64, 32], bytes(2048)), "has the shape [64, 32]"),
    "mx scales that are NaN": ("mxfp8-e4m3-rceil", put("weight_scale", "U8", [32, 2], b"\xff" * 64), "which is NaN"),
    "mx scales beyond fp32": ("mxfp8-e4m3-rceil", put("weight_scale", "U8", [32, 2], b"\xfe" * 64), "decoded to fp32"),
}


@pytest.mark.parametrize(("name", "change", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_named(name: str, change: Callable[[Tensors], object], message: str, tmp_path: Path) -> None:
    assert message in refused(copy_of(name, tmp_path / "c"), change)


def edit_weights(folder: Path, **changes: Json) -> None:
    """Changes the declared settings of weights."""

    def change(config: dict[str, Json]) -> None:
        text = config["text_config"]
        assert isinstance(text, dict)
        quantization = text["quantization_config"]
        assert isinstance(quantization, dict)
        groups = quantization["config_groups"]
        assert isinstance(groups, dict) and isinstance(groups["group_0"], dict)
        weights = groups["group_0"]["weights"]
        assert isinstance(weights, dict)
        weights.update(changes)

    edit_json(folder / "config.json", change)


DECLARATIONS: dict[str, tuple[str, dict[str, Json], str]] = {
    "another width": ("int3-g32", {"num_bits": 2}, "is packed as int3 in groups of 32"),
    "a width that is not there": ("int3-g32", {"num_bits": 5}, "num_bits = 5; expected 2 or 3 or 4 or 8"),
    "another group": ("int3-g32", {"group_size": 64}, "is packed as int3 in groups of 32"),
    "a group of zero": ("int3-g32", {"group_size": 0}, "group_size = 0"),
    "zero points": ("int3-g32", {"symmetric": False}, "symmetric = false"),
    "floats": ("int3-g32", {"type": "float"}, 'type = \\"float\\"'),
    "another order": ("int3-g32", {"actorder": "group"}, "actorder"),
    "a whole tensor": ("int3-g32", {"strategy": "tensor"}, "strategy"),
    "a block of another size": ("fp8-block128", {"block_structure": [64, 32]}, "is packed as e4m3 in whole tensors"),
    "a block of three": ("fp8-block128", {"block_structure": [64, 64, 2]}, "block_structure"),
    "no strategy": ("fp8-block128", {"strategy": None}, "strategy = null"),
    "nvfp4 in groups of 32": ("nvfp4", {"group_size": 32}, "group_size = 32"),
    "mxfp8 of 4 bits": ("mxfp8-e4m3-rceil", {"num_bits": 4}, "num_bits = 4"),
}


@pytest.mark.parametrize(("name", "changes", "message"), DECLARATIONS.values(), ids=DECLARATIONS)
def test_a_declaration_that_is_not_true_is_refused(
    name: str, changes: dict[str, Json], message: str, tmp_path: Path
) -> None:
    folder = copy_of(name, tmp_path / "c")
    edit_weights(folder, **changes)
    with pytest.raises(InputError) as caught:
        open_checkpoint(folder)
    assert message in str(caught.value).replace('"', '\\"') or message in str(caught.value)


def test_scales_may_have_their_other_name(tmp_path: Path) -> None:
    stacks = quantized_stacks("fp8-block128")
    folder = copy_of("fp8-block128", tmp_path / "c")

    def rename(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(".weight_scale")]:
            tensors[f"{name}_inv"] = tensors.pop(name)

    edit_tensors(folder / WEIGHTS, rename)
    read = read_stack(open_checkpoint(folder), GATE)
    assert torch.equal(read.scales, stacks[GATE].scales) and torch.equal(read.codes, stacks[GATE].codes)


def test_a_file_without_shapes_is_read_by_its_sizes(tmp_path: Path) -> None:
    stacks = quantized_stacks("int3-g32")
    folder = copy_of("int3-g32", tmp_path / "c")
    edit_tensors(folder / WEIGHTS, lambda t: [t.pop(name) for name in list(t) if name.endswith(".weight_shape")])
    assert torch.equal(read_stack(open_checkpoint(folder), GATE).codes, stacks[GATE].codes)
