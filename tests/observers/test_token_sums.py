"""Tokens keep their probe and place over batches, and what is read off them is what a loop finds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from quantaudit.observers.token_sums import (
    LEAD_EDGES,
    MAX_POSITIONS,
    TokenLog,
    Tokens,
    average_groups,
    delta_p,
    expected_effective_size,
    group_leads,
    group_positions,
    percentile,
    realised_effective_size,
    realised_extreme,
    realised_k2,
    realised_k3,
    root_mean_square,
)
from tests.observers.random_pairs import COUNTS, random_pair, with_itself

ANSWERED = COUNTS[:4]


def logged(*seeds: int) -> Tokens:
    """Returns the tokens of a batch a seed; probes of batch i stand at 10 i + 3, 2, 1, 0."""
    log = TokenLog()
    for number, seed in enumerate(seeds):
        log.add(random_pair(seed).tokens(), [10 * number + i for i in (3, 2, 1, 0)], ANSWERED)
    tokens = log.join()
    assert tokens is not None
    return tokens


def test_tokens_know_their_probe_and_their_place() -> None:
    tokens = logged(0, 1)
    assert tokens.probe_M.tolist() == [3] * 3 + [2] + [1] * 4 + [0] * 2 + [13] * 3 + [12] + [11] * 4 + [10] * 2
    assert tokens.position_M.tolist() == [0, 1, 2, 0, 0, 1, 2, 3, 0, 1] * 2
    assert len(tokens.view) == 2 * sum(ANSWERED)
    assert TokenLog().join() is None


def test_groups_are_averaged_apart_and_empty_ones_have_no_mean() -> None:
    tokens = logged(0, 1, 2)
    found = average_groups(tokens.view.kl_M, group_positions(tokens), 6)
    for place in range(6):
        values = [x for x, at in zip(tokens.view.kl_M, tokens.position_M, strict=True) if at == place]
        assert found.counts[place] == len(values)
        mean = found.means[place]
        assert (mean is None) == (not values)
        # Sums of at most 12 numbers, in two orders.
        assert mean is None or mean == pytest.approx(math.fsum(values) / len(values), rel=16 * 2.0**-53)


def test_late_positions_are_put_together() -> None:
    tokens = logged(0)
    late = Tokens(view=tokens.view, probe_M=tokens.probe_M, position_M=tokens.position_M + MAX_POSITIONS - 2)
    assert set(group_positions(late)) == {MAX_POSITIONS - 2, MAX_POSITIONS - 1}


def test_leads_are_binned_and_an_edge_belongs_above() -> None:
    tokens = logged(0, 1, 2, 3)
    expected = [sum(lead >= edge for edge in LEAD_EDGES) for lead in tokens.view.hi_lead_M]
    assert group_leads(tokens).tolist() == expected
    assert len(set(expected)) >= 4
    on_edge = replace(tokens, view=replace(tokens.view, hi_lead_M=np.array(LEAD_EDGES)))
    assert group_leads(on_edge).tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_changes_of_probability_have_the_sign_of_the_gain() -> None:
    view = random_pair(0).tokens()
    change = delta_p(view)
    assert np.array_equal(change > 0, view.log_ratio_M > 0)
    squares = [(b - a) ** 2 for a, b in zip(view.hi_p_M.tolist(), view.lo_p_M.tolist(), strict=True)]
    assert root_mean_square(change) == pytest.approx(math.sqrt(math.fsum(squares) / len(squares)), rel=16 * 2.0**-53)


@pytest.mark.parametrize(("percent", "expected"), [(1, 1.0), (5, 1.0), (50, 5.0), (51, 6.0), (95, 10.0), (99, 10.0)])
def test_percentiles_are_values_that_occurred(percent: float, expected: float) -> None:
    assert percentile(np.random.default_rng(0).permutation(np.arange(1.0, 11.0)), percent) == expected


def test_realised_ratios_are_those_of_a_loop() -> None:
    view = logged(0, 1, 2).view
    ratios = [b / a for a, b in zip(view.hi_p_M.tolist(), view.lo_p_M.tolist(), strict=True)]
    # A quotient of two probabilities against the exponential of a difference of logs of size up to 20.
    near = 64 * 20 * 2.0**-53
    assert realised_k2(view).tolist() == pytest.approx([math.log(r) ** 2 / 2 for r in ratios], rel=near, abs=near)
    assert realised_k3(view).tolist() == pytest.approx([r - 1 - math.log(r) for r in ratios], rel=near, abs=near)
    assert (realised_k3(view) >= 0).all()
    assert realised_extreme(view).tolist() == [float(max(r, 1 / r) > 2) for r in ratios]
    assert 0 < realised_extreme(view).mean() < 1
    size = math.fsum(ratios) ** 2 / (len(ratios) * math.fsum(r * r for r in ratios))
    assert realised_effective_size(view) == pytest.approx(size, rel=near)


def test_the_expected_effective_size_is_one_over_the_mean_second_moment() -> None:
    view = logged(0, 1).view
    assert expected_effective_size(view) == pytest.approx(1 / (1 + math.fsum(view.excess_M) / len(view)), rel=2.0**-48)
    assert 0 < expected_effective_size(view) < 1
    same = with_itself(random_pair()).tokens()
    assert expected_effective_size(same) == realised_effective_size(same) == 1.0
