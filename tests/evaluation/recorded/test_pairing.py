"""Only runs that were asked the same are paired, by id, and nothing is lost on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.evaluation.recorded.items import Asked
from quantaudit.evaluation.recorded.opening import open_recording
from quantaudit.evaluation.recorded.pairing import Pair, pair_up
from tests.evaluation.recorded.written import HI, LO, Row, rows, sample, write_csv, write_jsonl


def pair(tmp_path: Path, hi: list[Row], lo: list[Row]) -> Pair:
    return pair_up(*(open_recording(write_jsonl(tmp_path / name, made)) for name, made in (("hi", hi), ("lo", lo))))


def test_items_are_paired_by_id_whatever_their_order(tmp_path: Path) -> None:
    made = rows(20)
    paired = pair(tmp_path, made, made[::-1])
    assert (paired.hi.value_P["nll"] == paired.lo.value_P["nll"]).all()
    assert paired.num_common == 20 and paired.only_hi == paired.only_lo == ()


def test_what_one_side_alone_has_is_kept_in_sight(tmp_path: Path) -> None:
    made = rows(20)
    paired = pair(tmp_path, made[:15], made[3:])
    assert paired.only_hi == ("q0", "q1", "q2")
    assert paired.only_lo == tuple(f"q{i}" for i in range(15, 20))
    assert paired.num_common == 12 and len(paired.probes.probes) == 20


def test_real_runs_of_two_models_pair_whole() -> None:
    paired = pair_up(open_recording(HI), open_recording(LO))
    assert paired.num_common == 120 and paired.only_hi == paired.only_lo == ()
    assert set(paired.uncompared) == {Asked.TEMPLATE, Asked.TOKENIZER}


@pytest.mark.parametrize("kind", ["prompt", "target", "template", "tokenizer"])
def test_another_question_is_refused_with_both_digests(kind: str, tmp_path: Path) -> None:
    hi, lo = rows(20), rows(20)
    for made, word in ((hi, "aaa"), (lo, "bbb")):
        for row in made:
            row[f"{kind}_hash"] = "same"
        made[7][f"{kind}_hash"] = made[9][f"{kind}_hash"] = word
    with pytest.raises(InputError, match=f"another {kind} for 2 of 20 items, first 'q7': digest 'aaa' .* and 'bbb'"):
        pair(tmp_path, hi, lo)


def test_a_digest_that_one_side_lacks_is_not_compared_and_that_is_said(tmp_path: Path) -> None:
    lo = rows(20)
    del lo[3]["prompt_hash"]
    assert Asked.PROMPT in pair(tmp_path, rows(20), lo).uncompared


@pytest.mark.parametrize(("column", "value"), [("family", "words"), ("cluster", "c9"), ("behaviour", "comply")])
def test_an_item_that_stands_elsewhere_on_the_other_side_is_refused(column: str, value: str, tmp_path: Path) -> None:
    lo = rows(20)
    lo[4][column] = value
    with pytest.raises(InputError, match=f"the item 'q4' with {column} "):
        pair(tmp_path, rows(20), lo)


def test_runs_without_a_common_item_were_not_measured(tmp_path: Path) -> None:
    with pytest.raises(NotMeasuredError, match="hi has 10 items of sums, such as q0; .*lo has 10 items of sums"):
        pair(tmp_path, rows(10), rows(20)[10:])


def test_recordings_of_two_tools_are_refused_unless_both_are_plain(tmp_path: Path) -> None:
    plain = open_recording(write_jsonl(tmp_path / "a", rows(5)))
    table = open_recording(write_csv(tmp_path / "b", rows(5)))
    assert pair_up(plain, table).num_common == 5
    samples = open_recording(write_jsonl(tmp_path / "c", [sample(i, acc=1.0) for i in range(5)]))
    with pytest.raises(InputError, match="is plain JSONL and .* is lm-eval samples"):
        pair_up(plain, samples)


def test_two_metrics_are_not_one_accuracy(tmp_path: Path) -> None:
    other = sample(0, acc=1.0) | {"metrics": ["exact_match"], "exact_match": 1.0}
    one = open_recording(write_jsonl(tmp_path / "a", [sample(0, acc=1.0)]))
    two = open_recording(write_jsonl(tmp_path / "b", [other]))
    with pytest.raises(InputError, match="accuracy is acc in .* and exact_match in"):
        pair_up(one, two)


def test_a_column_of_families_that_names_items_is_refused(tmp_path: Path) -> None:
    made = rows(600)
    for i, row in enumerate(made):
        row["family"] = f"f{i}"
    with pytest.raises(InputError, match="600 families"):
        pair(tmp_path, made, made)
