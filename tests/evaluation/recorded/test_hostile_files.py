"""Files that are cut, packed, binary, endless or plainly wrong end in one message that names the place."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest

from quantaudit.core.errors import InputError
from quantaudit.evaluation.recorded import source
from quantaudit.evaluation.recorded.opening import open_recording
from tests.evaluation.recorded.written import rows, sample, write_jsonl

GOOD = json.dumps({"id": "a", "correct": 1})


class Runs:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exit, ("a pickle was opened",))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b" \r\n\n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (GOOD.encode() + b'\n{"id": "b", "corr', "line 2 is not a JSON object: column 13"),
        (b'{"id": "b", "corr\n' + GOOD.encode(), "line 1 is not a JSON object"),
        (GOOD.encode() + b"\n[1]\n", "line 2 is not a JSON object: it holds a list"),
        (GOOD.encode() + b'\n{"id": "b", "correct": 1, "correct": 0}\n', "line 2 .*the key 'correct' is there twice"),
        (GOOD.encode() + b'\n{"id": "b", "nll": 1' + b"0" * 400 + b"}\n", "line 2: nll is an integer beyond 1e308"),
        (GOOD.encode() + b'\n{"id": "b", "nll": 1' + b"0" * 5000 + b"}\n", "line 2 .*Exceeds the limit"),
        (GOOD.encode() + b'\n{"id": "b", "x": ' + b"[" * 9 + b"]" * 9 + b', "correct": "yes"}', "correct is a str"),
        (GOOD.encode() + b'\n{"id": "b", "x": ' + b"[" * 100 + b"]" * 100 + b"}\n", "line 2 .*nested too deeply"),
        (GOOD.encode() + b'\n{"id": "b", "x": ' + b"[" * 100_000 + b"\n", "line 2 .*nested too deeply"),
        (GOOD.encode() + b'\n{"id": ["b"], "correct": 1}\n', "line 2: id is a list"),
        (GOOD.encode() + b"\n\xff\xfe\n", "line 2: byte 0xff is not UTF-8"),
        (GOOD.encode() + b"\n\0\n", "line 2: a NUL byte"),
        ("id,correct\n".encode("utf-16"), "is UTF-16"),
        (b"[" + GOOD.encode() + b"]", "is a JSON list"),
        (b'{\n "some": "thing"\n}\n', "is one JSON object"),
        (b"{", "is not a JSON object: column 2"),
        (b"{}", "no id among the columns it has"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 9, "a NUL byte"),
        (gzip.compress(b"0" * 1_000_000), "is packed with gzip"),
        (pickle.dumps(Runs()), "is a Python pickle"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError, match=said) as caught:
        open_recording(path)
    assert len(str(caught.value)) < 600 and "\n" not in str(caught.value)


def test_lines_of_two_formats_in_one_file_are_refused(tmp_path: Path) -> None:
    mixed = write_jsonl(tmp_path / "x.jsonl", [sample(0, acc=1.0), {"id": "a", "correct": 1}])
    with pytest.raises(InputError, match="line 2 has no doc_hash"):
        open_recording(mixed)
    other = write_jsonl(tmp_path / "y.jsonl", [{"id": "a", "correct": 1}, sample(0, acc=1.0)])
    with pytest.raises(InputError, match="line 2: no id among the columns"):
        open_recording(other)


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", rows(100))
    with pytest.raises(InputError, match="of [0-9,]+ bytes; expected at most 1,000"):
        source.read_source(path, max_bytes=1000)


def test_paths_that_are_no_file_say_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a file that exists"):
        open_recording(tmp_path / "missing.csv")
    with pytest.raises(InputError, match="expected lm-eval's samples_"):
        open_recording(tmp_path)


def test_a_folder_with_two_runs_of_a_task_is_refused(tmp_path: Path) -> None:
    for day in ("01", "02"):
        write_jsonl(tmp_path / f"samples_t_2026-01-{day}T00-00-00.0.jsonl", [sample(0, acc=1.0)])
    with pytest.raises(InputError, match="one samples file a task"):
        open_recording(tmp_path)
