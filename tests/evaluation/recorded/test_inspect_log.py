"""inspect logs, as one document and as an archive, made to inspect's schema (0.3.285)."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from quantaudit.core.errors import InputError
from quantaudit.evaluation.recorded.inspect_log import read_archive
from quantaudit.evaluation.recorded.items import Format
from quantaudit.evaluation.recorded.opening import open_recording
from quantaudit.evaluation.recorded.source import read_source
from tests.evaluation.recorded.written import log

VALUES: dict[str | int, object] = {"a": "C", "b": "I", "c": "P", "d": "N", "e": True, "f": 0.25, 7: 1, "g": None}


def write_archive(path: Path, document: Mapping[str, object]) -> Path:
    samples = document["samples"]
    assert isinstance(samples, list)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_journal/start.json", "{}")
        for entry in samples:
            archive.writestr(f"samples/{entry['id']}_epoch_{entry['epoch']}.json", json.dumps(entry))
        archive.writestr("header.json", json.dumps({k: v for k, v in document.items() if k != "samples"}))
    return path


@pytest.mark.parametrize("indent", [None, 2])
def test_values_are_numbers_and_a_sample_without_one_was_not_answered(indent: int | None, tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps(log(VALUES), indent=indent), "utf-8")
    recording = open_recording(path)
    assert recording.format is Format.INSPECT and recording.metric == "match"
    found = {item.id: item.values.get("accuracy") for item in recording.items}
    assert found == {"a": 1, "b": 0, "c": 0.5, "d": 0, "e": 1, "f": 0.25, "7": 1, "g": None}


def test_an_archive_reads_as_its_document(tmp_path: Path) -> None:
    document = tmp_path / "log.json"
    document.write_text(json.dumps(log(VALUES)), "utf-8")
    assert open_recording(write_archive(tmp_path / "log.eval", log(VALUES))).items == open_recording(document).items


def test_repetitions_of_a_sample_are_one_cluster(tmp_path: Path) -> None:
    document = log({"a": "C", "b": "I"})
    samples = document["samples"]
    assert isinstance(samples, list)
    document["samples"] = samples + [entry | {"epoch": 2} for entry in samples]
    path = tmp_path / "log.json"
    path.write_text(json.dumps(document), "utf-8")
    assert [(i.id, i.cluster) for i in open_recording(path).items] == [
        ("a#1", "a"),
        ("b#1", "b"),
        ("a#2", "a"),
        ("b#2", "b"),
    ]


def test_a_word_that_is_no_score_is_refused_with_its_sample(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps(log({"a": "C", "b": "perhaps"})), "utf-8")
    with pytest.raises(InputError, match="sample 'b': match is 'perhaps'; expected C, I, P, N or a number"):
        open_recording(path)
    with pytest.raises(InputError, match="the metric 'choice' in .*; expected one of match"):
        open_recording(path, metric="choice")


def test_an_archive_larger_than_allowed_is_not_unpacked(tmp_path: Path) -> None:
    bomb = log({"a": "C"}) | {"padding": "0" * 5_000_000}
    path = write_archive(tmp_path / "log.eval", bomb)
    assert path.stat().st_size < 20_000
    with pytest.raises(InputError, match="unpacks to 5,0[0-9,]+ bytes; expected at most 1,000,000"):
        read_archive(read_source(path), metric=None, max_bytes=1_000_000)


def test_an_archive_that_lies_about_its_size_is_found_out(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "log.eval", log({"a": "C"}) | {"padding": "0" * 100_000})
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02", 0, data.rindex(b"header.json"))  # the directory's entry of header.json
    struct.pack_into("<I", data, at + 24, 50)  # its size once unpacked
    path.write_bytes(data)
    with pytest.raises(InputError, match="is not an inspect log: "):
        open_recording(path)


def test_an_archive_packed_with_zstd_says_how_to_convert_it(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "log.eval", log({"a": "C"}))
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = data.find(signature)
        while at >= 0:
            struct.pack_into("<H", data, at + offset, 93)
            at = data.find(signature, at + 4)
    path.write_bytes(data)
    with pytest.raises(InputError, match="inspect log convert LOG.eval --to json"):
        open_recording(path)


@pytest.mark.parametrize("cut", [30, 200])
def test_a_cut_archive_is_damaged(cut: int, tmp_path: Path) -> None:
    path = write_archive(tmp_path / "log.eval", log({"a": "C"}))
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(InputError, match="is not an inspect log: it is damaged"):
        open_recording(path)


def test_another_zip_archive_is_no_log(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("data.csv", "id,correct\n")
    with pytest.raises(InputError, match="it holds no header.json"):
        open_recording(tmp_path / "x.zip")
