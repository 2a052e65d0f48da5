"""What is not a folder of safetensors is refused with the reason and the cure, and no pickle is ever opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantaudit.checkpoint.folder import INDEX_FILE, find_weights
from quantaudit.core.errors import InputError
from quantaudit.core.serial import Json
from tests.checkpoint.tiny import WEIGHTS, edit_json


def refused(path: Path) -> str:
    """Returns the message with which the folder is refused."""
    with pytest.raises(InputError) as caught:
        find_weights(path)
    assert caught.value.expected and caught.value.fix
    return str(caught.value)


def test_a_path_that_does_not_exist_is_never_taken_for_a_hub_name(tmp_path: Path) -> None:
    message = refused(tmp_path / "moonshotai" / "Kimi-K3")
    assert "does not exist" in message and "never taken for a hub name" in message


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    assert f"{tmp_path} is empty" in refused(tmp_path)


def test_a_file_in_place_of_the_folder_is_refused(plain: Path) -> None:
    assert f"is a file; expected a folder with config.json and {WEIGHTS}" in refused(plain / WEIGHTS)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt", "last.ckpt", "state.pkl", "weights.pickle"]
)
def test_a_pickle_is_refused_as_file_and_in_a_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04.")
    for path in (tmp_path, tmp_path / name):
        assert f"{name} is a pickle, which can run code, and is never loaded" in refused(path)


def test_a_pickle_beside_safetensors_is_ignored(plain: Path) -> None:
    (plain / "optimizer.pt").write_bytes(b"\x80\x04.")
    assert [path.name for path in find_weights(plain).files] == [WEIGHTS]


def test_a_folder_without_weights_says_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert f"holds no {WEIGHTS}" in refused(tmp_path)


def test_shards_without_their_index_are_refused(sharded: Path) -> None:
    (sharded / INDEX_FILE).unlink()
    message = refused(sharded)
    assert "model-00001-of-" in message and f"but no {INDEX_FILE}" in message


def test_two_sets_of_weights_are_refused(sharded: Path, plain: Path) -> None:
    (sharded / WEIGHTS).write_bytes((plain / WEIGHTS).read_bytes())
    assert f"holds both {WEIGHTS} and an index of other files" in refused(sharded)


def test_missing_shards_are_counted(sharded: Path) -> None:
    shards = find_weights(sharded).files
    for path in shards[1:3]:
        path.unlink()
    message = refused(sharded)
    assert f"lacks 2 of {len(shards)} shards, first '{shards[1].name}'" in message and "finish the download" in message


BAD_SHARDS: dict[str, Json] = {
    "parent": "../plain/model.safetensors",
    "deep parent": "a/../../model.safetensors",
    "absolute": "/etc/model.safetensors",
    "home": "~/model.safetensors",
    "subfolder": "shards/model.safetensors",
    "backslash": "..\\model.safetensors",
    "drive": "C:model.safetensors",
    "NUL": "model\0.safetensors",
    "hidden": ".model.safetensors",
    "empty": "",
    "only the suffix": ".safetensors",
    "dots": "..",
    "pickle": "pytorch_model.bin",
    "newline": "model.safetensors\n",
    "too long": "m" * 300 + ".safetensors",
    "lone surrogate": "model\ud800.safetensors",
    "number": 1,
    "null": None,
    "list": ["model.safetensors"],
}


@pytest.mark.parametrize("shard", BAD_SHARDS.values(), ids=BAD_SHARDS.keys())
def test_a_shard_name_that_is_no_plain_file_name_is_refused(sharded: Path, shard: Json) -> None:
    def redirect(index: dict[str, Json]) -> None:
        weight_map = index["weight_map"]
        assert isinstance(weight_map, dict)
        weight_map["language_model.lm_head.weight"] = shard

    edit_json(sharded / INDEX_FILE, redirect)
    message = refused(sharded)
    assert "gives 'language_model.lm_head.weight' to" in message and message.isprintable()


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"weight_map": {}}', '{"weight_map": []}', '{"weight_map": null}', "{"]
)
def test_an_index_without_a_map_is_refused(sharded: Path, text: str) -> None:
    (sharded / INDEX_FILE).write_text(text)
    assert INDEX_FILE in refused(sharded)


def test_a_link_to_a_file_elsewhere_is_followed(plain: Path, tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    (plain / WEIGHTS).rename(blob)
    (plain / WEIGHTS).symlink_to(blob)
    assert [path.name for path in find_weights(plain).files] == [WEIGHTS]


def test_a_dangling_link_counts_as_missing(sharded: Path, tmp_path: Path) -> None:
    shard = find_weights(sharded).files[0]
    shard.unlink()
    shard.symlink_to(tmp_path / "nowhere")
    assert "lacks 1 of" in refused(sharded)
