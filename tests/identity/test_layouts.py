"""Every layout decodes to what the library that writes it decodes to, and one weight has one name in all of them."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from quantaudit.core.comparison import Encoding
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.identity.layouts.logical import DENSE, Side, keep_matching, logical_name
from quantaudit.identity.layouts.opening import open_side
from quantaudit.identity.layouts.stored import StoredMatrix
from quantaudit.numerics import dequantize, get_scheme, pack, quantize
from tests.checkpoint.packed_files import SCHEMES, quantized_stacks, written_once
from tests.checkpoint.tiny import file_of

MODULE = "model.layers.2.mlp.experts.1.gate_proj"
STACK = "layers.2.experts.gate"
TAGS = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
}


def write(path: Path, tensors: dict[str, Tensor]) -> Path:
    """Writes a safetensors file by code of the tests' own."""
    path.write_bytes(
        file_of(
            {
                name: (TAGS[t.dtype], list(t.shape), t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
                for name, t in tensors.items()
            }
        )
    )
    return path


def weight(rows: int = 6, cols: int = 64, *, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Returns Gaussian weights whose rows differ in size, with zeros of both signs."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, cols, generator=generator) * torch.exp2(torch.randn(rows, 1, generator=generator) * 2)
    x[0, :3] = torch.tensor([0.0, -0.0, 0.0])
    return x.to(dtype)


def mxfp4_parts(x: Tensor, rule: str = "mxfp4-even") -> dict[str, Tensor]:
    """Returns codes and scales of a matrix as K3 and compressed-tensors store them."""
    q = quantize(x, get_scheme(rule))
    scheme = get_scheme(rule)
    return {"weight_packed": pack(q.codes, scheme.layout), "weight_scale": q.scales}


def only_matrix(side: Side) -> StoredMatrix:
    """Reads the one matrix of a side."""
    (tensor,) = side.tensors.values()
    (source,) = tensor.matrices.values()
    return source.read()


def all_values(matrix: StoredMatrix, dtype: torch.dtype = torch.float32) -> Tensor:
    """Decodes a whole matrix three rows at a time."""
    return torch.cat([matrix.values(rows, dtype) for rows in matrix.row_pieces(3 * matrix.shape[1])])


def in_module(parts: dict[str, Tensor], module: str = MODULE) -> dict[str, Tensor]:
    """Returns the tensors of a module under their full names."""
    return {f"{module}.{name}": part for name, part in parts.items()}


CT_FORMATS = {
    "mxfp4": ("MXFP4A16", "mxfp4-pack-quantized", Encoding.MXFP4, 32),
    "nvfp4": ("NVFP4A16", "nvfp4-pack-quantized", Encoding.NVFP4, 16),
    "int2": ("W2A16", "pack-quantized", Encoding.INT2, 128),
    "int3": ("W3A16", "pack-quantized", Encoding.INT3, 128),
    "int4": ("W4A16", "pack-quantized", Encoding.INT4, 128),
    "int8": ("W8A16", "pack-quantized", Encoding.INT8, 128),
    "mxfp8": ("MXFP8A16", "mxfp8-quantized", Encoding.MXFP8, 32),
    "fp8-tensor": ("FP8", "float-quantized", Encoding.FP8, 0),
    "fp8-channel": ("FP8_DYNAMIC", "float-quantized", Encoding.FP8, 256),
}


@pytest.mark.parametrize("name", CT_FORMATS)
def test_compressed_tensors_decodes_to_the_same_values(name: str, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    preset_name, compressor_name, encoding, group = CT_FORMATS[name]
    preset, x = preset_name_to_scheme(preset_name, ["Linear"]), weight(8, 256, dtype=torch.float32)
    groups = x.view(8, -1, group) if group else x.view(1, 1, -1)
    top = generate_gparam(x.min(), x.max()) if name == "nvfp4" else None
    scale, zero_point = calculate_qparams(groups.amin(-1), groups.amax(-1), preset.weights, top)
    state = {"weight": x, "weight_scale": scale if group else scale.reshape(1), "weight_zero_point": zero_point}
    if top is not None:
        state["weight_global_scale"] = top.reshape(1)
    compressor = BaseCompressor.get_value_from_registry(compressor_name)
    stored = compressor.compress(state, preset)
    stored.pop("weight_zero_point", None)
    theirs = compressor.decompress(dict(stored), preset)["weight"]
    matrix = only_matrix(open_side(write(tmp_path / "ct.safetensors", in_module(stored))))
    assert matrix.encoding is encoding and matrix.shape == (8, 256)
    ours = all_values(matrix)
    assert torch.equal(ours.to(theirs.dtype), theirs) and ours.abs().max() > 1


@pytest.mark.parametrize("name", SCHEMES)
def test_a_packed_checkpoint_has_the_values_that_were_packed(name: str) -> None:
    side = open_side(written_once(name))
    for stack, q in quantized_stacks(name).items():
        role = {"w1": "gate", "w2": "down", "w3": "up"}[stack.role]
        for expert, source in side.tensors[f"layers.{stack.layer}.experts.{role}"].matrices.items():
            assert torch.equal(all_values(source.read()), dequantize(q, torch.float32)[expert])


def test_fp8_blocks_at_the_edge_share_a_partial_scale(tmp_path: Path) -> None:
    x = weight(200, 300, dtype=torch.float32)
    q = quantize(x, get_scheme("fp8-block128"))
    parts = {"weight": q.codes.view(torch.float8_e4m3fn), "weight_scale_inv": q.scales}
    matrix = only_matrix(open_side(write(tmp_path / "blocks.safetensors", in_module(parts))))
    assert torch.equal(all_values(matrix), dequantize(q))


def test_partial_words_are_cut_to_the_stated_shape(tmp_path: Path) -> None:
    codes = torch.arange(-8, 7, dtype=torch.int8).repeat(2, 1)  # 15 columns, two words
    scheme = get_scheme("int4-g32-div7")
    parts = {
        "weight_packed": pack(codes, scheme.layout),
        "weight_scale": torch.full((2, 1), 0.5, dtype=torch.bfloat16),
        "weight_shape": torch.tensor([2, 15]),
    }
    matrix = only_matrix(open_side(write(tmp_path / "words.safetensors", in_module(parts))))
    assert torch.equal(all_values(matrix), codes.float() / 2)


def test_gpt_oss_blocks_are_what_transformers_decodes(tmp_path: Path) -> None:
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 10, 2, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(120, 134, (3, 10, 2), dtype=torch.uint8, generator=generator)
    stem = "model.layers.2.mlp.experts.gate_up_proj"
    down = {"down_proj_blocks": blocks[:, :4], "down_proj_scales": scales[:, :4]}
    tensors = {f"{stem}_blocks": blocks, f"{stem}_scales": scales}
    tensors |= {f"model.layers.2.mlp.experts.{name}": part for name, part in down.items()}
    side = open_side(write(tmp_path / "oss.safetensors", tensors))
    assert list(side.tensors) == ["layers.2.experts.down", "layers.2.experts.gate", "layers.2.experts.up"]
    theirs_EHI = mxfp4.convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)  # [expert, in, 2 * out]
    for expert in range(3):
        for name, rows in (("gate", slice(0, None, 2)), ("up", slice(1, None, 2))):
            source = side.tensors[f"layers.2.experts.{name}"].matrices[expert]
            assert torch.equal(all_values(source.read()), theirs_EHI[expert].T[rows])


@pytest.mark.parametrize("is_transposed", [False, True])
def test_fused_plain_experts_are_split_and_turned(is_transposed: bool, tmp_path: Path) -> None:
    gate, up, down = weight(6, 10), weight(6, 10, seed=1), weight(10, 6, seed=2)
    if is_transposed:  # interleaved too, as gpt-oss has it, and with its bias
        fused = torch.stack([gate, up], 1).reshape(12, 10).T
        tensors = {"gate_up_proj": fused, "down_proj": down.T, "gate_up_proj_bias": torch.zeros(1, 12)}
    else:
        tensors = {"gate_up_proj": torch.cat([gate, up]), "down_proj": down}
    named = {
        f"model.layers.2.mlp.experts.{name}": t.float().unsqueeze(0) if t.dim() == 2 and "bias" not in name else t
        for name, t in tensors.items()
    }
    side = open_side(write(tmp_path / "fused.safetensors", named))
    for name, expected in (("gate", gate), ("up", up), ("down", down)):
        stack = side.tensors[f"layers.2.experts.{name}"]
        assert torch.equal(all_values(stack.matrices[0].read()), expected.float())


@pytest.mark.parametrize("kind", ["MXFP4", "Q4_0", "Q8_0", "BF16", "F16"])
def test_gguf_decodes_to_the_same_values(kind: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    number = gguf.GGMLQuantizationType[kind]
    x = torch.stack([weight(4, 64, seed=s, dtype=torch.float32) for s in range(3)]).numpy()
    stored = gguf.quants.quantize(x, number)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "qwen3moe")
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc"])
    writer.add_tensor("blk.2.ffn_gate_exps.weight", stored, raw_dtype=number)
    writer.add_tensor("token_embd.weight", np.ones((3, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    side = open_side(tmp_path / "model.gguf")
    assert list(side.tensors) == ["embed_tokens.weight", STACK]
    theirs = torch.from_numpy(gguf.quants.dequantize(stored, number))
    for expert, source in side.tensors[STACK].matrices.items():
        assert torch.equal(all_values(source.read()), theirs[expert])


@pytest.mark.parametrize(
    ("stem", "name", "expert"),
    [
        ("language_model.model.layers.2.block_sparse_moe.experts.7.w1", "layers.2.experts.gate", 7),
        ("model.layers.2.mlp.experts.7.up_proj", "layers.2.experts.up", 7),
        ("model.layers.2.block_sparse_moe.experts.0.w2", "layers.2.experts.down", 0),
        ("model.layers.2.mlp.shared_experts.up_proj", "layers.2.mlp.shared_experts.up_proj.weight", DENSE),
        ("lm_head", "lm_head.weight", DENSE),
    ],
)
def test_one_weight_has_one_name(stem: str, name: str, expert: int) -> None:
    assert logical_name(stem, "weight") == (name, expert)


def test_what_is_not_known_keeps_its_bytes(tmp_path: Path) -> None:
    tensors = {
        "model.layers.2.mlp.up_proj.qweight": torch.arange(8, dtype=torch.int32),
        "position_ids": torch.arange(4),
        "a.weight_packed": torch.zeros(2, 16, dtype=torch.uint8),
        "a.weight_scale": torch.zeros(2, 1, dtype=torch.uint8),
        "a.weight_zero_point": torch.zeros(2, 1, dtype=torch.int8),
    }
    side = open_side(write(tmp_path / "odd.safetensors", tensors))
    found = {name: tensor.matrices[DENSE].encoding for name, tensor in side.tensors.items()}
    assert found == {
        "a.weight": Encoding.UNKNOWN,
        "layers.2.mlp.up_proj.qweight": Encoding.UNKNOWN,
        "position_ids": Encoding.INTEGERS,
    }
    assert not any(tensor.matrices[DENSE].read().is_decodable for tensor in side.tensors.values())


PACKED, SCALE = torch.zeros(4, 32, dtype=torch.uint8), torch.zeros(4, 2, dtype=torch.uint8)
CONTRADICTIONS = {
    "codes without scales": {"weight_packed": PACKED},
    "scales without codes": {"weight_scale": SCALE},
    "stored twice": {"weight_packed": PACKED, "weight_scale": SCALE, "weight": weight(4, 64)},
    "transposed scales": {"weight_packed": PACKED, "weight_scale": SCALE.T},
    "another group size": {"weight_packed": PACKED, "weight_scale": torch.zeros(4, 4, dtype=torch.uint8)},
    "blocks that do not fit": {
        "weight": torch.zeros(200, 200).to(torch.float8_e4m3fn),
        "weight_scale": torch.ones(3, 3),
    },
    "codes with the other name of scales": {"weight_packed": PACKED, "weight_scale_inv": SCALE},
    "a multiplier without codes": {"weight_scale_2": torch.ones(1), "weight_scale": SCALE},
    "words of five bits": {
        "weight_packed": torch.zeros(2, 5, dtype=torch.int32),
        "weight_scale": torch.ones(2, 1),
        "weight_shape": torch.tensor([2, 32]),
    },
    "a shape of another weight": {
        "weight_packed": torch.zeros(2, 2, dtype=torch.int32),
        "weight_scale": torch.ones(2, 1),
        "weight_shape": torch.tensor([2, 17]),
    },
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_parts_that_contradict_each_other_are_refused(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "bad.safetensors", in_module(CONTRADICTIONS[name]))
    with pytest.raises(InputError, match=MODULE):
        open_side(path)


def test_a_weight_under_two_names_is_refused(tmp_path: Path) -> None:
    tensors = {"model.norm.weight": weight(1, 4), "language_model.model.norm.weight": weight(1, 4)}
    with pytest.raises(InputError, match=r"norm.weight twice"):
        open_side(write(tmp_path / "twice.safetensors", tensors))


def gguf_bytes(
    *, tensors: int = 1, keys: int = 0, key: bytes = b"", offset: int = 0, axes: tuple[int, ...] = (32,)
) -> bytes:
    """Returns a gguf file with one F32 tensor, written here."""
    data = b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + key
    data += struct.pack("<Q", 1) + b"t" + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, 0, offset)
    return data + bytes(-len(data) % 32) + bytes(128)


HOSTILE = {
    "no magic": b"GGML" + bytes(60),
    "cut short": gguf_bytes()[:30],
    "more tensors than bytes": gguf_bytes(tensors=1 << 50),
    "a string beyond the file": gguf_bytes(keys=1, key=struct.pack("<Q", 1 << 60)),
    "an array beyond the file": gguf_bytes(
        keys=1, key=struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 4, 1 << 61)
    ),
    "strings without end": gguf_bytes(keys=1, key=struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 8, 1 << 61)),
    "an unknown value": gguf_bytes(keys=1, key=struct.pack("<Q", 1) + b"k" + struct.pack("<I", 77)),
    "data outside": gguf_bytes(offset=1 << 40),
    "fewer bytes than values": gguf_bytes(axes=(64,)),
    "axes that overflow": gguf_bytes(axes=(1 << 40, 1 << 40)),
    "no axes": gguf_bytes(axes=()),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_gguf_file_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(InputError, match="bad.gguf"):
        open_side(path)


def test_the_gguf_file_that_the_hostile_ones_are_made_from_is_read(tmp_path: Path) -> None:
    (tmp_path / "good.gguf").write_bytes(gguf_bytes())
    assert only_matrix(open_side(tmp_path / "good.gguf")).shape == (1, 32)


def test_paths_that_are_no_checkpoint_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"PK")
    for path in (tmp_path / "model.bin", tmp_path / "none", tmp_path / "none.safetensors", tmp_path / "none.gguf"):
        with pytest.raises(InputError, match=path.name):
            open_side(path)


def test_a_pattern_that_matches_nothing_measures_nothing(tmp_path: Path) -> None:
    side = open_side(write(tmp_path / "one.safetensors", in_module(mxfp4_parts(weight()))))
    assert list(keep_matching(side, "*experts*").tensors) == [STACK]
    with pytest.raises(NotMeasuredError, match=r"layers\.2\.experts\.gate"):
        keep_matching(side, "*attention*")
