"""Requests that cannot be judged: refused before anything runs, or inconclusive with the reason."""

from __future__ import annotations

import numpy as np
import pytest

from quantaudit.core.decision import Outcome
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.core.probe import Behaviour, Split
from quantaudit.core.verdict import Admission
from quantaudit.evaluation.admission import admit
from quantaudit.evaluation.clauses import decide_clauses
from quantaudit.evaluation.runner import check_request
from tests.evaluation.synthetic import PROBES, at, clause, contract, evidence, harmed


def test_a_probe_that_is_there_twice_is_refused() -> None:
    first, second, *rest = PROBES.probes
    once = PROBES.model_copy(update={"probes": (*PROBES.probes, first)})
    with pytest.raises(InputError, match=rf"'synthetic' with the probe '{first.id}' more than once; expected every"):
        check_request(contract(), once)
    both = PROBES.model_copy(update={"probes": (first, second, first, *rest, second, second)})
    with pytest.raises(InputError, match=rf"with 2 probes, '{first.id}' and others, more than once"):
        check_request(contract(), both)
    check_request(contract(), PROBES)


def test_probes_of_two_splits_and_no_probes_are_refused() -> None:
    first, *rest = PROBES.probes
    mixed = PROBES.model_copy(update={"probes": (first.model_copy(update={"split": Split.SELECT}), *rest)})
    with pytest.raises(InputError, match="probes of the splits audit, select"):
        check_request(contract(), mixed)
    with pytest.raises(NotMeasuredError, match="is empty, so nothing was measured"):
        check_request(contract(), PROBES.model_copy(update={"probes": ()}))


def test_a_slice_without_probes_is_refused() -> None:
    answers = PROBES.model_copy(update={"probes": tuple(p for p in PROBES.probes if p.behaviour is Behaviour.ANSWER)})
    with pytest.raises(InputError, match=r"clause 'refusal' applies to no probe of 'synthetic'; expected probes with"):
        check_request(contract(clause("task"), clause("refusal")), answers)


def test_a_margin_below_the_floor_is_inconclusive_and_says_so() -> None:
    noisy = harmed("nll", at(), 0.01 * np.where(np.arange(len(PROBES.probes)) % 2, 1.0, -0.6))
    agreed = contract(clause("integrity"), clause("fidelity").model_copy(update={"margin": 1e-3}))
    found = evidence(harmed("nll", at(), 0.0), floor=noisy)
    results = decide_clauses(agreed, found)
    fidelity = results[1]
    assert fidelity.decision.outcome is Outcome.UNDECIDED
    assert "The margin of 0.001 is under 3 times the floor of" in fidelity.decision.reason
    verdict = admit(results, (), is_exact=False)
    assert verdict.admission is Admission.INCONCLUSIVE and "under 3 times the floor" in verdict.sentence
