"""Other libraries read what is written here, and this package reads what they write."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from quantaudit.checkpoint.header import DType
from quantaudit.checkpoint.index import read_index
from quantaudit.checkpoint.names import Role, dense_slots
from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.checkpoint.serialize import NamedTensor, write_safetensors
from quantaudit.checkpoint.unstack import layout_tensors, pad
from quantaudit.numerics import QuantizedTensor
from tests.checkpoint.tiny import TINY, WEIGHTS, random_state


@pytest.mark.parametrize("name", ["plain", "packed", "sharded"])
def test_the_safetensors_library_reads_every_tensor_alike(written: Path, name: str) -> None:
    checkpoint = open_checkpoint(written / name)
    for path in checkpoint.index.files:
        theirs = load_file(path)
        ours = {n: checkpoint.read(n) for n, t in checkpoint.index.tensors.items() if t.file == path}
        assert theirs.keys() == ours.keys()
        for tensor, value in theirs.items():
            assert value.dtype == ours[tensor].dtype and torch.equal(value, ours[tensor]), tensor
        with safe_open(path, "pt") as opened:
            assert opened.metadata() == {"format": "pt"}


def test_the_bytes_are_those_of_the_safetensors_library(written: Path, tmp_path: Path) -> None:
    tensors = load_file(written / "packed" / WEIGHTS)
    save_file(tensors, tmp_path / "theirs", metadata={"format": "pt"})
    write_safetensors(tmp_path / "ours", [NamedTensor(*item) for item in tensors.items()])
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_checkpoint_saved_by_the_safetensors_library_is_read(written: Path, plain: Path) -> None:
    slots = {slot.name: slot for slot in dense_slots(TINY)}
    tensors = [pad(named, slots) for named in layout_tensors(random_state().items(), TINY, None)]
    save_file({named.name: named.tensor.contiguous() for named in tensors}, plain / WEIGHTS)
    ours, theirs = open_checkpoint(written / "plain"), open_checkpoint(plain)
    for name in ours.index.tensors:
        assert torch.equal(ours.read(name), theirs.read(name))


def test_headers_agree_with_the_safetensors_library(written: Path) -> None:
    index = read_index(written / "packed")
    with safe_open(index.files[0], "pt") as opened:
        for name, located in index.tensors.items():
            theirs = opened.get_slice(name)
            assert theirs.get_dtype() == located.entry.dtype
            assert tuple(theirs.get_shape()) == located.entry.shape
    assert {located.entry.dtype for located in index.tensors.values()} == {DType.BF16, DType.F32, DType.U8}


@pytest.mark.parametrize("role", list(Role))
def test_compressed_tensors_decodes_the_packed_experts_alike(written: Path, role: Role) -> None:
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    args = QuantizationArgs(num_bits=4, type="float", strategy="group", group_size=32, symmetric=True)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    checkpoint = open_checkpoint(written / "packed")
    stem = f"language_model.model.layers.4.block_sparse_moe.experts.5.{role}"
    stored = {part: checkpoint.read(f"{stem}.{part}") for part in ("weight_packed", "weight_scale")}
    theirs = MXFP4PackedCompressor.decompress(stored, scheme)["weight"]
    ours = checkpoint.expert(4, 5, role)
    assert isinstance(ours, QuantizedTensor)
    assert torch.equal(theirs.to(torch.bfloat16), checkpoint.decoded_stack(4, role)[5])
