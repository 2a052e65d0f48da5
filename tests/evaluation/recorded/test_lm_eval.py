"""lm-eval's samples, as lm-eval 0.4.13 wrote them for a tiny random model and its 4-bit copy, and made to order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quantaudit.core.errors import InputError
from quantaudit.evaluation.recorded.items import Asked, Format, Item
from quantaudit.evaluation.recorded.opening import open_recording
from tests.evaluation.recorded.written import HI, LO, digest, sample, write_jsonl

SUMS = next(HI.glob("samples_tiny_sums_*"))
GENERATED = next(HI.glob("samples_tiny_gen_*"))


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def test_a_real_file_is_read_line_by_line() -> None:
    written, recording = lines(SUMS), open_recording(SUMS)
    assert recording.format is Format.LM_EVAL and recording.metric == "acc"
    assert len(recording.items) == len(written) == 40
    for item, line in zip(recording.items, written, strict=True):
        assert item.family == "tiny_sums" and item.values["accuracy"] == line["acc"]
        assert item.asked == {Asked.PROMPT: line["prompt_hash"], Asked.TARGET: line["target_hash"]}


def test_the_margin_of_a_real_line_is_what_the_right_choice_leads_by() -> None:
    first = open_recording(SUMS).items[0]
    # the second choice is right: -22.64385986328125 against the best other one, -22.843456268310547
    assert first.values["answer-margin"] == -22.64385986328125 + 22.843456268310547
    assert first.values["accuracy"] == 1.0


def test_the_subject_of_the_documents_is_the_cluster() -> None:
    recording = open_recording(SUMS)
    assert {item.cluster for item in recording.items} == {f"s{i}" for i in range(8)}
    assert "tiny_sums: clusters are the 8 values of 'subject'." in recording.notes


def test_another_metric_can_be_chosen_and_none_that_is_not_there() -> None:
    assert open_recording(SUMS, metric="acc_norm").metric == "acc_norm"
    with pytest.raises(InputError, match="expected one of acc, acc_norm"):
        open_recording(SUMS, metric="exact_match")


def test_every_filter_of_a_real_generation_task_is_a_family() -> None:
    recording = open_recording(GENERATED)
    families = {item.family for item in recording.items}
    assert families == {"tiny_gen/strict-match", "tiny_gen/flexible-extract"}
    assert len(recording.items) == 80 and recording.metric == "exact_match"
    assert all("answer-margin" not in item.values for item in recording.items)


def test_a_folder_is_one_run_of_several_tasks() -> None:
    recording = open_recording(LO)
    assert len(recording.items) == 120 and recording.metric == "exact_match, acc"
    assert recording.name == "data/lo"


def test_the_content_decides_and_not_the_name(tmp_path: Path) -> None:
    renamed = tmp_path / "results.csv"
    renamed.write_bytes(SUMS.read_bytes())
    assert open_recording(renamed).format is Format.LM_EVAL


def test_a_document_that_is_there_twice_by_number_is_two_items_of_one_cluster(tmp_path: Path) -> None:
    twin = sample(1, acc=1.0) | {"doc_hash": digest("doc 0")}
    items = open_recording(write_jsonl(tmp_path / "x.jsonl", [sample(0, acc=1.0), twin, sample(2, acc=1.0)])).items
    assert [item.id[-2:] for item in items[:2]] == ["#0", "#1"]
    assert items[0].cluster == items[1].cluster != items[2].cluster


def test_a_document_that_is_there_again_is_named_with_both_lines(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [sample(0, acc=1.0), sample(1, acc=0.0), sample(0, acc=0.0)])
    with pytest.raises(InputError, match=rf"{digest('doc 0')[:60]}.* of line 1 is there again in line 3"):
        open_recording(path)


def test_margins_that_contradict_the_answers_are_not_used(tmp_path: Path) -> None:
    right = sample(0, acc=1.0, likelihoods=(-1.0, -2.0))
    wrong = sample(1, acc=1.0, likelihoods=(-2.0, -1.0))
    assert "answer-margin" in open_recording(write_jsonl(tmp_path / "a.jsonl", [right])).items[0].values
    both = open_recording(write_jsonl(tmp_path / "b.jsonl", [right, wrong]))
    assert all("answer-margin" not in item.values for item in both.items)
    assert "task: which choice is right cannot be told, so there are no answer margins." in both.notes


def test_a_target_in_words_is_found_among_the_choices(tmp_path: Path) -> None:
    row = sample(0, acc=1.0, likelihoods=(-1.0, -3.0, -2.5)) | {"target": "0 "}
    row["arguments"] = {f"gen_args_{k}": {"arg_0": "q", "arg_1": f" {w}"} for k, w in enumerate(("yes", "no", "maybe"))}
    row["target"] = "no"
    row["acc"] = 0.0
    assert open_recording(write_jsonl(tmp_path / "x.jsonl", [row])).items[0].values["answer-margin"] == -2.0


@pytest.mark.parametrize("metric", ["brier_score", "perplexity"])
def test_a_metric_that_is_better_when_smaller_is_never_called_accuracy(metric: str, tmp_path: Path) -> None:
    row = sample(0, acc=1.0) | {"metrics": [metric], metric: 0.3}
    recording = open_recording(write_jsonl(tmp_path / "x.jsonl", [row]))
    assert recording.metric == "" and recording.items[0].values == {}


def test_an_infinite_score_is_kept_and_a_list_is_refused(tmp_path: Path) -> None:
    def read(value: object) -> Item:
        first = sample(0, acc=1.0)
        return open_recording(write_jsonl(tmp_path / "x.jsonl", [first, sample(1, acc=1.0) | {"acc": value}])).items[1]

    assert read(None).values == {}
    with pytest.raises(InputError, match=r"x.jsonl, line 2: acc is a list"):
        read([1, 2])
    with pytest.raises(InputError, match="line 2: acc is 2; expected a score from 0 to 1"):
        read(2)


def test_the_summary_of_a_run_is_no_list_of_items(tmp_path: Path) -> None:
    path = tmp_path / "results_x.json"
    path.write_text(json.dumps({"results": {}, "configs": {}}, indent=2), "utf-8")
    with pytest.raises(InputError, match="give the samples file beside it"):
        open_recording(path)
