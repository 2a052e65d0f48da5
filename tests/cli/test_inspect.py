"""`inspect` shows which experts really are low-bit, and exits 3 where they are not what is declared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quantaudit.core.serial import Json
from tests.checkpoint.tiny import LAYER_2, WEIGHTS, edit_json, edit_tensors
from tests.cli.command import Command, is_one_line


@pytest.mark.parametrize(("name", "num_packed"), [("plain", 0), ("packed", 36), ("sharded", 36)])
def test_the_map_is_shown(name: str, num_packed: int, written: Path, quantaudit: Command) -> None:
    ended = quantaudit("inspect", written / name)
    assert ended.code == 0 and ended.err == ""
    assert f"{num_packed} of 36 expert matrices are packed" in ended.out
    shown = json.loads(quantaudit("inspect", written / name, "--json").out)
    assert sum(row["num_packed"] for row in shown["rows"]) == num_packed and shown["findings"] == []


def test_the_embedded_model_is_the_default(quantaudit: Command) -> None:
    ended = quantaudit("inspect")
    assert ended.code == 0 and "0 of 768 expert matrices are packed; 16.00 bits a weight" in ended.out


def test_precision_that_is_not_as_declared_exits_3(models: Path, quantaudit: Command) -> None:
    def declare_nothing(values: dict[str, Json]) -> None:
        text = values["text_config"]
        assert isinstance(text, dict)
        del text["quantization_config"]

    edit_json(models / "packed" / "config.json", declare_nothing)
    ended = quantaudit("inspect", models / "packed")
    assert ended.code == 3 and ended.err == ""
    assert "finding: The configuration declares no quantization, but 36 of 36" in ended.out
    as_json = quantaudit("inspect", models / "packed", "--json")
    assert as_json.code == 3 and len(json.loads(as_json.out)["findings"]) == 1


def test_a_path_that_does_not_exist_is_refused(quantaudit: Command) -> None:
    ended = quantaudit("inspect", "/no/such/folder")
    assert ended.code == 2 and ended.out == "" and is_one_line(ended.err)


def test_the_map_fits_sixty_columns(written: Path, quantaudit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    out = quantaudit("inspect", written / "packed").out
    assert max(map(len, out.splitlines())) <= 60 and out.isascii() and "\x1b" not in out


def test_consecutive_layers_that_are_alike_share_their_lines(models: Path, quantaudit: Command) -> None:
    def unpack_one(tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
        name = f"{LAYER_2}.3.w1.weight"
        del tensors[f"{name}_packed"], tensors[f"{name}_scale"]
        tensors[name] = ("BF16", [32, 64], bytes(2 * 32 * 64))

    assert rows(quantaudit("inspect").out) == [["1-4", "w1", "0"], ["1-4", "w2", "0"], ["1-4", "w3", "0"]]
    edit_tensors(models / "packed" / WEIGHTS, unpack_one)
    roles = ("w1", "w2", "w3")
    expected = [["2", role, "5" if role == "w1" else "6"] for role in roles] + [["4", role, "6"] for role in roles]
    assert rows(quantaudit("inspect", models / "packed").out) == expected


def rows(table: str) -> list[list[str]]:
    """Returns layers, matrix and number packed of every line."""
    return [line.split()[:3] for line in table.splitlines()[2:] if line[0].isdigit() and " w" in line[:12]]
