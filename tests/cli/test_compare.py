"""`compare` tells two checkpoints apart, shows where first, and exits 0, 3 or 4."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from quantaudit.core.comparison import Comparison
from quantaudit.numerics import get_scheme
from tests.checkpoint.tiny import edit_tensors, save
from tests.cli.command import Command, is_one_line

LAYER = "language_model.model.layers.2.block_sparse_moe.experts"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights in bf16 and packed, and packed with one changed code."""
    root = tmp_path_factory.mktemp("compared")
    save(root / "plain")
    save(root / "packed", scheme=get_scheme("mxfp4-even"))
    save(root / "sharded", scheme=get_scheme("mxfp4-even"), shard_bytes=20_000)
    shutil.copytree(root / "packed", root / "flipped")

    def flip(tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
        dtype, shape, raw = tensors[f"{LAYER}.4.w1.weight_packed"]
        tensors[f"{LAYER}.4.w1.weight_packed"] = (dtype, shape, bytes([raw[0] ^ 1]) + raw[1:])

    edit_tensors(root / "flipped" / "model.safetensors", flip)
    return root


def test_equal_checkpoints_exit_0(folders: Path, quantaudit: Command) -> None:
    ended = quantaudit("compare", folders / "packed", folders / "sharded", "--bytes")
    assert ended.code == 0 and ended.out.startswith("IDENTICAL IN BYTES: ")
    assert "124  byte-equal" in ended.out
    assert quantaudit("compare", folders / "packed", folders / "sharded").out.startswith("IDENTICAL IN VALUE: ")


def test_a_changed_code_exits_3_and_is_shown_in_bits(folders: Path, quantaudit: Command) -> None:
    ended = quantaudit("compare", folders / "packed", folders / "flipped")
    assert ended.code == 3 and ended.out.startswith("DIFFERENT: ")
    assert "layers.2.experts.gate: different codes (1 of 6 matrices; 1 codes; 1 values)" in ended.out
    assert "first expert 4, at [0, 0], group 0: " in ended.out and ended.out.count("0x") == 2
    assert len(ended.out.splitlines()) <= 25 and ended.out.isascii()


def test_the_json_has_the_stable_keys(folders: Path, quantaudit: Command) -> None:
    ended = quantaudit("compare", folders / "packed", folders / "flipped", "--json", "--match", "*gate")
    shown = json.loads(ended.out)
    assert ended.code == 3 and shown["identical"] is False
    (bad,) = [tensor for tensor in shown["tensors"] if tensor["class"] == "different codes"]
    assert {"name", "class", "differing", "first"} <= bad.keys()
    assert bad["differing"] == {"scales": 0, "codes": 1, "values": 1}
    assert bad["first"]["expert"] == 4 and bad["first"]["coordinate"] == [0, 0]
    assert Comparison.from_json(ended.out).to_json() == ended.out


def test_the_rule_that_packed_a_master_is_shown(folders: Path, quantaudit: Command) -> None:
    ended = quantaudit("compare", folders / "plain", folders / "packed")
    assert ended.code == 3 and "explained: mxfp4-even gives all of the values of 6 tensors" in ended.out
    assert len(ended.out.splitlines()) <= 25
    shown = json.loads(quantaudit("compare", folders / "plain", folders / "packed", "--json").out)
    assert set(shown["diagnosis"][0]) == {"kind", "mismatch", "field", "train", "serve", "explains", "tensors"}


def test_what_could_not_be_checked_exits_4(tmp_path: Path, quantaudit: Command) -> None:
    header = b'{"a.qweight": {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]}}'
    for name, data in (("a", b"abcd"), ("b", b"abce")):
        (tmp_path / f"{name}.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    ended = quantaudit("compare", tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert ended.code == 4 and ended.out.startswith("NOT CHECKED: ")
    assert "layout of the first and the second side is not known" in ended.out


def test_manifests_are_compared_without_the_weights(folders: Path, tmp_path: Path, quantaudit: Command) -> None:
    for name in ("packed", "flipped"):
        assert quantaudit("fingerprint", folders / name, "-o", tmp_path / f"{name}.json").code == 0
    ended = quantaudit("compare", tmp_path / "packed.json", tmp_path / "flipped.json")
    assert ended.code == 3 and "layers.2.experts.gate: different values (1 of 6 matrices; experts 4)" in ended.out


@pytest.mark.parametrize("bad", ["/no/such/folder", "none.safetensors", "none.json", "none.gguf"])
def test_a_path_that_does_not_exist_is_refused(bad: str, folders: Path, quantaudit: Command) -> None:
    ended = quantaudit("compare", folders / "packed", bad)
    assert ended.code == 2 and ended.out == "" and is_one_line(ended.err) and bad in ended.err


def test_names_that_do_not_pair_exit_4(tmp_path: Path, quantaudit: Command) -> None:
    for name in ("a", "b"):
        header = f'{{"{name}": {{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}}}'.encode()
        (tmp_path / f"{name}.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    ended = quantaudit("compare", tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert ended.code == 4 and is_one_line(ended.err) and "no tensor is on both sides" in ended.err
