"""`inspect` shows which experts really are low-bit, and exits 3 where they are not what is declared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quantaudit.core.serial import Json
from tests.checkpoint.tiny import edit_json
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
