"""The embedded model has something to lose: the recipes that must be told apart are."""

from __future__ import annotations

import pytest

from quantaudit.api import audit
from quantaudit.core.verdict import Admission


@pytest.mark.slow
def test_two_bits_are_rejected() -> None:
    assert audit(recipe="int2", threads=1).verdict.admission is Admission.REJECT


@pytest.mark.slow
def test_identity_is_admitted_exactly() -> None:
    report = audit(recipe="identity", threads=1)
    assert report.verdict.admission is Admission.ADMIT
    assert all(gate.decision.is_exact for gate in report.gates())
