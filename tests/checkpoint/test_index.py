"""Index and shards must state the same pairs of tensor and file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from quantaudit.checkpoint.folder import INDEX_FILE
from quantaudit.checkpoint.index import TensorIndex, read_index
from quantaudit.core.errors import InputError
from quantaudit.core.serial import Json
from tests.checkpoint.tiny import WEIGHTS, edit_json, edit_tensors, file_of

HEAD = "language_model.lm_head.weight"


def weight_map(index: dict[str, Json]) -> dict[str, Json]:
    """Returns the map of a parsed index file."""
    return cast("dict[str, Json]", index["weight_map"])


def test_shards_and_one_file_hold_the_same_tensors(written: Path) -> None:
    one, many = read_index(written / "packed"), read_index(written / "sharded")
    assert len(many.files) > 3 and len(one.files) == 1
    assert {n: (t.entry.dtype, t.entry.shape) for n, t in one.tensors.items()} == {
        n: (t.entry.dtype, t.entry.shape) for n, t in many.tensors.items()
    }
    assert one.num_bytes == many.num_bytes


def test_total_size_is_the_size_of_all_tensors(written: Path) -> None:
    index = json.loads((written / "sharded" / INDEX_FILE).read_text())
    assert index["metadata"]["total_size"] == read_index(written / "sharded").num_bytes


def test_the_map_cannot_be_changed(written: Path) -> None:
    index: TensorIndex = read_index(written / "plain")
    with pytest.raises(TypeError):
        index.tensors["x"] = index.tensors[HEAD]  # type: ignore[index]


def test_an_index_that_names_absent_tensors_is_refused(sharded: Path) -> None:
    def name_more(index: dict[str, Json]) -> None:
        weight_map(index).update({"ghost.1": weight_map(index)[HEAD], "ghost.2": weight_map(index)[HEAD]})

    edit_json(sharded / INDEX_FILE, name_more)
    with pytest.raises(InputError, match="names 2 tensors that their shards do not hold, first 'ghost.1' in 'model-"):
        read_index(sharded)


def test_a_tensor_that_the_index_does_not_name_is_refused(sharded: Path) -> None:
    edit_json(sharded / INDEX_FILE, lambda index: weight_map(index).pop(HEAD))
    with pytest.raises(InputError, match=f"holds '{HEAD}', which {INDEX_FILE} names nowhere"):
        read_index(sharded)


def test_a_tensor_that_the_index_gives_to_another_shard_is_refused(sharded: Path) -> None:
    def move(index: dict[str, Json]) -> None:
        other = next(shard for shard in weight_map(index).values() if shard != weight_map(index)[HEAD])
        weight_map(index)[HEAD] = other

    edit_json(sharded / INDEX_FILE, move)
    with pytest.raises(InputError, match=f"names 1 tensors that their shards do not hold, first '{HEAD}'"):
        read_index(sharded)


def test_a_tensor_in_two_shards_is_refused(sharded: Path) -> None:
    shards = sorted(sharded.glob("*.safetensors"))
    home = read_index(sharded).tensors[HEAD].file
    other = next(shard for shard in shards if shard != home)
    edit_tensors(other, lambda tensors: tensors.update({HEAD: ("U8", [1], b"x")}))
    with pytest.raises(InputError, match=f"{other.name} holds '{HEAD}', which {INDEX_FILE} gives to '{home.name}'"):
        read_index(sharded)


def test_one_damaged_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(InputError, match=f"{shard.name} is cut short"):
        read_index(sharded)


def test_a_file_without_tensors_is_refused(plain: Path) -> None:
    (plain / WEIGHTS).write_bytes(file_of({}))
    with pytest.raises(InputError, match="holds no tensor"):
        read_index(plain)
