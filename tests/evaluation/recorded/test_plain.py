"""Plain JSONL and CSV: the same rows read the same, and a wrong column is named."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from quantaudit.core.errors import InputError
from quantaudit.core.probe import Behaviour
from quantaudit.evaluation.recorded.items import Asked, Format
from quantaudit.evaluation.recorded.opening import open_recording
from tests.evaluation.recorded.written import Row, rows, write_csv, write_jsonl


def test_csv_and_jsonl_of_the_same_rows_are_the_same_items(tmp_path: Path) -> None:
    made = rows(50, clusters=7)
    one, two = open_recording(write_csv(tmp_path / "a", made)), open_recording(write_jsonl(tmp_path / "b", made))
    assert one.items == two.items
    assert (one.format, two.format) == (Format.CSV, Format.JSONL)


def test_every_column_has_its_place(tmp_path: Path) -> None:
    row: Row = {
        "id": "q",
        "family": "plain",
        "cluster": "term",
        "behaviour": "refuse",
        "score": 0.5,
        "nll": 1.5,
        "margin": -2.0,
        "refused": True,
        "refusal_margin": 3.0,
        "prompt_hash": "p",
        "target_hash": "t",
        "template_hash": "m",
        "tokenizer_hash": "k",
    }
    item = open_recording(write_jsonl(tmp_path / "x", [row])).items[0]
    assert (item.id, item.family, item.cluster, item.behaviour) == ("q", "plain", "term", Behaviour.REFUSE)
    assert item.values == {
        "accuracy": 0.5,
        "nll": 1.5,
        "answer-margin": -2.0,
        "refusal-rate": 1.0,
        "refusal-margin": 3.0,
    }
    assert item.asked == {Asked.PROMPT: "p", Asked.TARGET: "t", Asked.TEMPLATE: "m", Asked.TOKENIZER: "k"}


def test_an_empty_cell_is_no_number_and_nan_is_one(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id,correct,nll\na,,nan\nb,TRUE,inf\n", "utf-8")
    first, second = open_recording(path).items
    assert first.values.keys() == {"nll"} and math.isnan(first.values["nll"])
    assert second.values == {"accuracy": 1.0, "nll": math.inf}


def test_a_mark_at_the_start_and_both_kinds_of_line_end_are_read_over(tmp_path: Path) -> None:
    text = 'id,family,correct\r\n"a,1",s,1\r\n\r\nb,s,0\r\n'
    (tmp_path / "x.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [item.id for item in open_recording(tmp_path / "x.csv").items] == ["a,1", "b"]
    # U+2028 may stand inside JSON text and ends no line
    lines = '{"id": "a\u2028b", "correct": 1}\r\n\r\n{"id": "c", "correct": 0}\r\n'
    (tmp_path / "x.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    assert [item.id for item in open_recording(tmp_path / "x.jsonl").items] == ["a\u2028b", "c"]


def test_columns_that_are_not_read_are_named(tmp_path: Path) -> None:
    notes = open_recording(write_jsonl(tmp_path / "x", [{"id": "a", "correct": 1, "seconds": 2}])).notes
    assert any("columns that were not read: 'seconds'" in note for note in notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,marign\na,1\n", "line 1: the column 'marign'.*did you mean margin"),
        ("id,Correct\na,1\n", "did you mean correct"),
        ("name,correct\na,1\n", "line 1: no id among the columns 'name', 'correct'"),
        ("id,answer\na,1\n", "no number among the columns"),
        ("id,correct,score\na,1,1\n", "both correct and score"),
        ("id,correct,correct\na,1,1\n", "line 1: the column 'correct' is there twice"),
        ("id,correct\na,1\nb\n", "line 3: 1 cells under 2 columns"),
        ("id,correct\na,right\n", "line 2: correct is 'right'"),
        ("id,correct\na,0.5\n", "line 2: correct is 0.5; expected 0 or 1"),
        ("id,score\na,55\n", "line 2: score is 55; expected a score from 0 to 1"),
        ("id,correct\na,1\nb,0\na,0\n", "the id 'a' of line 2 is there again in line 4"),
        ("id,correct\n,1\n", "line 2: no id"),
        ("id,correct\n" + "a" * 600 + ",1\n", "line 2: id has 600 characters"),
        ("id,refused\na,1\n", "line 2: a refusal of an item whose behaviour is answer"),
        ("id,refused,behaviour\na,1,deny\n", "behaviour 'deny'; expected one of answer, refuse, comply"),
        ('id,correct\n"a,1\n', "line 2: unexpected end of data"),
        ("just some prose\n", "line 1: no id among the columns"),
    ],
)
def test_a_fault_of_a_csv_file_is_named_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text, "utf-8")
    with pytest.raises(InputError, match=said):
        open_recording(path)


def test_a_metric_is_no_choice_where_columns_say_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--metric acc for .* plain JSONL"):
        open_recording(write_jsonl(tmp_path / "x", rows(1)), metric="acc")
