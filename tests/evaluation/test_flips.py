"""Flips: which are chosen, what they are called, both texts, and nothing restricted in plain text."""

from __future__ import annotations

import numpy as np
import pytest

from quantaudit.core.probe import ProbeSet
from quantaudit.evaluation.flips import GAINED, LOST, OTHER, choose_flips, list_flips, name_change
from quantaudit.evaluation.generation import Answers
from quantaudit.evaluation.table import Table
from quantaudit.probes.tokenizer import EOS, encode
from tests.evaluation.scripted import right
from tests.evaluation.synthetic import PROBES, at, good_values, table_of

WRONG, OTHER_WRONG = (*encode("zz"), EOS), (*encode("yy"), EOS)


def flipped(lost: list[int], gained: list[int]) -> Table:
    """Returns a table in which these answers changed sides; the later ones lose the more margin."""
    hi = good_values()
    lo = {name: values.copy() for name, values in hi.items()}
    for rank, i in enumerate(lost):
        lo["accuracy"][i], lo["answer-margin"][i] = 0, hi["answer-margin"][i] - 5 - rank
    for i in gained:
        hi["accuracy"][i], hi["answer-margin"][i] = 0, -1
    return table_of(hi, lo)


def test_every_flip_is_chosen_where_there_is_room() -> None:
    lost, gained = at("sums")[:4].tolist(), at("plain")[5:7].tolist()
    assert set(choose_flips(PROBES, flipped(lost, gained))) == {*lost, *gained}
    assert choose_flips(PROBES, flipped([], [])) == ()


def test_the_largest_of_every_family_and_direction_come_first() -> None:
    sums, words, plain = at("sums")[:50].tolist(), at("words")[:3].tolist(), at("plain")[:9].tolist()
    chosen = choose_flips(PROBES, flipped(sums + words, plain), limit=6)
    assert chosen == (sums[-1], words[-1], chosen[2], sums[-2], words[-2], chosen[5])
    assert {chosen[2], chosen[5]} <= set(plain)
    assert len(choose_flips(PROBES, flipped(sums + words, plain))) == 60


def test_a_margin_that_is_not_a_number_comes_first() -> None:
    sums = at("sums")[:3].tolist()
    table = flipped(sums, [])
    table.parts["answer-margin"][0].lo_R[sums[1]] = np.nan
    assert choose_flips(PROBES, table)[0] == sums[1]


@pytest.mark.parametrize(
    ("hi", "lo", "change"),
    [
        (None, WRONG, LOST),
        (WRONG, None, GAINED),
        (WRONG, OTHER_WRONG, OTHER),
        (None, None, None),
        (WRONG, WRONG, None),
    ],
)
def test_changes_are_named_by_what_was_written(
    hi: tuple[int, ...] | None, lo: tuple[int, ...] | None, change: str | None
) -> None:
    probe = PROBES.probes[0]
    assert name_change(probe, Answers(hi or right(probe), lo or right(probe))) == change


def test_a_right_text_that_does_not_end_is_not_right() -> None:
    probe = PROBES.probes[0]
    assert name_change(probe, Answers(right(probe), (*right(probe)[:-1], 33, 33))) == LOST


def answers(*positions: int, probes: ProbeSet = PROBES) -> dict[int, Answers]:
    return {i: Answers(right(probes.probes[i]), WRONG) for i in positions}


def test_flips_are_listed_in_reading_order_with_both_texts() -> None:
    given = answers(9, 2) | {5: Answers(WRONG, OTHER_WRONG), 7: Answers(WRONG, right(PROBES.probes[7]))}
    given[8] = Answers(WRONG, WRONG)
    given[1] = Answers(right(PROBES.probes[1]), tuple(encode("zzzz")))
    found = list_flips(PROBES, given, (9, 8), show_restricted=False)
    assert [(f.probe_id, f.change) for f in found] == [
        (PROBES.probes[i].id, change) for i, change in ((1, LOST), (2, LOST), (9, LOST), (7, GAINED), (5, OTHER))
    ]
    assert (found[1].hi_response, found[1].lo_response, found[1].expected) == ("002", "zz", "002")
    assert found[0].lo_response == "zzzz..."
    assert (found[1].prompt, found[1].family, found[1].cluster) == ("sums 2?", "sums", "c2")
    assert not any(f.is_redacted for f in found)


def test_the_chosen_come_before_others_when_there_are_too_many() -> None:
    found = list_flips(PROBES, answers(*range(20)), (15, 17), show_restricted=False, limit=4)
    assert [f.prompt for f in found] == ["sums 0?", "sums 1?", "sums 15?", "sums 17?"]


def test_restricted_text_is_redacted_in_every_field() -> None:
    positions = at("plain", "wrapped")[190:210].tolist()
    hidden = list_flips(PROBES, answers(*positions), (), show_restricted=False)
    shown = list_flips(PROBES, answers(*positions), (), show_restricted=True)
    assert len(hidden) == len(shown) == 20
    for flip, plain in zip(hidden, shown, strict=True):
        assert flip.is_redacted and not plain.is_redacted
        assert {flip.cluster, flip.prompt, flip.expected, flip.hi_response, flip.lo_response} == {"[redacted]"}
        for secret in (plain.prompt, plain.expected, plain.hi_response, plain.lo_response, plain.cluster):
            assert secret and secret not in flip.model_copy(update={"probe_id": ""}).to_json()
        assert (flip.probe_id, flip.change, flip.family) == (plain.probe_id, plain.change, plain.family)


def test_benign_text_is_shown() -> None:
    (found,) = list_flips(PROBES, answers(int(at("benign")[3])), (), show_restricted=False)
    assert not found.is_redacted and found.prompt == "benign 3?"


def test_every_family_has_its_turn_when_there_are_too_many() -> None:
    given = answers(*at("sums")[:30].tolist(), *at("words")[:30].tolist(), *at("benign")[:2].tolist())
    found = list_flips(PROBES, given, (), show_restricted=False, limit=8)
    assert [sum(f.family == family for f in found) for family in ("sums", "words", "benign")] == [3, 3, 2]
