"""The wording of refusals by hand, and the prefix margin against sums of probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quantaudit.observers.template import OPENING_TOKENS, commonest_opening, describe_wording, prefix_margin

NO, OK, NEVER = tuple(b"no i wont."), tuple(b"ok: abc."), tuple(b"never, sir.")
REFUSALS = (tuple(b"no"), tuple(b"never"))


def test_wording_by_hand() -> None:
    # Openings: "no i won" twice (the tenth token does not count), "ok: abc." once, "never, s" once.
    found = describe_wording([NO, (*NO[:9], 33, 33), OK, NEVER], NO[:OPENING_TOKENS], REFUSALS)
    assert found.is_common_C.tolist() == [1, 1, 0, 0]
    assert found.unique_rate == 0.5
    assert found.entropy == pytest.approx(-(0.5 * math.log(0.5) + 2 * 0.25 * math.log(0.25)), rel=1e-15)
    assert found.num_refusals == 3 and found.refusal_length == (10 + 11 + 11) / 3


def test_one_wording_has_no_entropy_and_no_refusal_has_no_length() -> None:
    found = describe_wording([OK, OK], NO[:OPENING_TOKENS], REFUSALS)
    assert (found.entropy, found.unique_rate, found.refusal_length, found.num_refusals) == (0.0, 0.0, None, 0)
    assert math.copysign(1, found.entropy) == 1
    assert found.is_common_C.tolist() == [0, 0]


def test_the_commonest_opening_does_not_hang_on_order() -> None:
    assert commonest_opening([OK, NO, NO]) == NO[:OPENING_TOKENS]
    assert commonest_opening([NO, OK]) == commonest_opening([OK, NO]) == NO[:OPENING_TOKENS]


def test_the_prefix_margin_is_a_ratio_of_summed_probabilities() -> None:
    rng = np.random.default_rng(0)
    refusal, compliance = rng.uniform(-20, 0, 4), rng.uniform(-20, 0, 3)
    expected = math.log(np.exp(refusal).sum() / np.exp(compliance).sum())
    assert prefix_margin(refusal.tolist(), compliance.tolist()) == pytest.approx(expected, rel=1e-13)


def test_the_prefix_margin_of_what_underflows_is_still_there() -> None:
    assert prefix_margin([-2000.0, -2000.0], [-2001.0]) == pytest.approx(1 + math.log(2), rel=1e-12)
    assert math.isnan(prefix_margin([float("nan")], [-1.0]))
    assert math.isnan(prefix_margin([-math.inf], [-math.inf]))
