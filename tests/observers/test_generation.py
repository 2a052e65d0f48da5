"""Partings, their survival curve against a hand computation and another library's, and loops against a plain search."""

from __future__ import annotations

import numpy as np
import pytest
from statsmodels.duration.survfunc import SurvfuncRight

from quantaudit.observers.generation import (
    LOOP_NGRAM,
    LOOP_TIMES,
    LOOP_TOKENS,
    Parting,
    estimate_survival,
    find_parting,
    has_ended,
    is_looping,
    median_step,
)


@pytest.mark.parametrize(
    ("hi", "lo", "expected"),
    [
        ((1, 2, 9), (1, 2, 9), Parting(3, False)),
        ((1, 2, 9), (3, 2, 9), Parting(1, True)),
        ((1, 2, 9), (1, 2, 4), Parting(3, True)),
        ((1, 9), (1, 2, 9), Parting(2, True)),
        ((1, 2), (1, 2, 9), Parting(3, True)),  # only possible where budgets differ
    ],
)
def test_pairs_part_at_the_first_token_that_differs(
    hi: tuple[int, ...], lo: tuple[int, ...], expected: Parting
) -> None:
    assert find_parting(hi, lo) == expected == find_parting(lo, hi)


def test_survival_with_censoring_by_hand() -> None:
    # Six pairs: one parts at 1, one at 2 while another ends alike there, one at 3 while another ends alike, one ends
    # alike at 5. At risk: 6, 5, 3, 1, 1. S = 5/6, x 4/5, x 2/3, then nothing more parts. Had the pair that ends at 2
    # been taken as lasting for ever, S(3) were 3/6; taken as gone with the parted, 2/6.
    pairs = [(1, True), (2, False), (2, True), (3, False), (3, True), (5, False)]
    found = estimate_survival([Parting(*pair) for pair in pairs])
    assert found.at_risk_T.tolist() == [6, 5, 3, 1, 1]
    np.testing.assert_allclose(found.together_T, [5 / 6, 4 / 6, 4 / 9, 4 / 9, 4 / 9], rtol=1e-15)
    assert median_step(found) == 3


def test_survival_is_that_of_another_library() -> None:
    rng = np.random.default_rng(7)
    step, is_parted = rng.integers(1, 30, 300), rng.random(300) < 0.4
    found = estimate_survival([Parting(int(s), bool(p)) for s, p in zip(step, is_parted, strict=True)])
    reference = SurvfuncRight(step.astype(float), is_parted.astype(int))
    at = reference.surv_times.astype(int) - 1
    # A product of at most 30 ratios, each rounded twice: 60 units roundoff of values up to 1.
    assert np.abs(found.together_T[at] - reference.surv_prob).max() <= 60 * 2.0**-53
    assert found.at_risk_T[at].tolist() == reference.n_risk.astype(int).tolist()


def test_the_median_is_not_there_while_most_stay_together() -> None:
    assert median_step(estimate_survival([Parting(1, True), Parting(4, False), Parting(4, False)])) is None
    assert median_step(estimate_survival([Parting(2, True), Parting(4, False)])) == 2


def test_only_the_last_token_ends_a_continuation() -> None:
    assert has_ended((1, 9), 9) and not has_ended((9, 1), 9) and not has_ended((), 9)


def loops_plainly(tokens: tuple[int, ...]) -> bool:
    """Looks at every place and every n-gram."""
    for size in range(1, LOOP_NGRAM + 1):
        need = max(LOOP_TIMES * size, LOOP_TOKENS)
        for start in range(len(tokens) - need + 1):
            if all(tokens[i] == tokens[start + (i - start) % size] for i in range(start, start + need)):
                return True
    return False


def test_loops_are_those_of_a_plain_search() -> None:
    rng = np.random.default_rng(3)
    drawn = [tuple(rng.integers(0, 2, int(n)).tolist()) for n in rng.integers(0, 28, 400)]
    planted = [(*t[:3], *t[3:7] * 3, 1) for t in drawn if len(t) >= 7]
    found = [is_looping(tokens) for tokens in drawn + planted]
    assert found == [loops_plainly(tokens) for tokens in drawn + planted]
    assert 0 < sum(found) < len(found)


def test_answers_are_no_loops() -> None:
    assert not is_looping(tuple(b"no i wont.")) and not is_looping(tuple(b"aaaaaaa"))
    assert is_looping(tuple(b"aaaaaaaa")) and is_looping(tuple(b"ok: ababababa")) and is_looping(tuple(b"wxyz" * 3))
