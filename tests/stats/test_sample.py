"""Grouping keeps every difference with its cluster and refuses what cannot be paired."""

from __future__ import annotations

import numpy as np
import pytest

from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.stats.sample import gather


def test_values_are_gathered_by_cluster_in_their_order() -> None:
    sample = gather([1.0, 2.0, 3.0, 4.0, 5.0], ["b", "a", "b", "c", "a"])
    assert sample.clusters == ("a", "b", "c")
    assert sample.values_N.tolist() == [2.0, 5.0, 1.0, 3.0, 4.0]
    assert sample.sizes_G.tolist() == [2, 2, 1]


def test_lengths_must_agree() -> None:
    with pytest.raises(InputError, match="one cluster for each difference"):
        gather([1.0, 2.0], ["a"])


def test_nothing_paired_is_not_measured() -> None:
    with pytest.raises(NotMeasuredError):
        gather([], [])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_non_finite_difference_is_named_by_position(bad: float) -> None:
    with pytest.raises(InputError, match="position 1"):
        gather([0.0, bad], ["a", "b"])
