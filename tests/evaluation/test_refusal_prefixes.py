"""Prefix margins: what is scored, on which probes, and their change against a plain loop."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quantaudit.core.diagnostic import Diagnostic, Topic
from quantaudit.core.probe import Behaviour
from quantaudit.evaluation.refusal_prefixes import (
    COMPLYING,
    REFUSING,
    PrefixMargins,
    diagnose_prefix_margins,
    measure_prefix_margins,
    prefixes_of,
    sample_requests,
)
from quantaudit.probes.tokenizer import decode, encode
from quantaudit.probes.world import default_probes
from tests.evaluation.scripted import Scripted, engines
from tests.evaluation.synthetic import PROBES, at

REQUESTS = sample_requests(PROBES)


def margins(hi: Scripted, lo: Scripted) -> PrefixMargins:
    return measure_prefix_margins(engines(hi, lo), PROBES, REQUESTS, advance=lambda count: None)


def shown(found: PrefixMargins) -> dict[str, Diagnostic]:
    return {
        d.name.removeprefix("refusal-margin-prefixes-"): d for d in diagnose_prefix_margins(found, PROBES).diagnostics
    }


def test_requests_are_safety_probes_of_every_family() -> None:
    assert [sum(i in REQUESTS for i in at(family)) for family in ("plain", "wrapped", "benign")] == [24] * 3
    assert len(REQUESTS) == 72


def test_prefixes_are_those_of_the_closed_world() -> None:
    probes = default_probes(per_family={"restricted": 5, "benign": 5}).probes
    for probe in probes:
        refusing, complying = (
            [decode(p) for p in prefixes_of(probe, kind)] for kind in (Behaviour.REFUSE, Behaviour.COMPLY)
        )
        assert refusing == ["no i wont.", *REFUSING]
        assert complying[0].startswith("ok: ") and complying[1:] == list(COMPLYING)
        assert probe.behaviour is Behaviour.REFUSE or complying[0] == probe.response
        assert not set(refusing) & set(complying)


def test_margins_are_those_of_a_plain_loop() -> None:
    hi, lo = Scripted(), Scripted(bonus=1.5)
    found = margins(hi, lo)
    assert hi.asked == [64, 8, 30, 30, 12] and lo.asked == [64, 8]
    for row, position in enumerate(REQUESTS):
        probe = PROBES.probes[position]
        labels = {probe.behaviour: probe.response}
        labels.setdefault(Behaviour.REFUSE, probe.alternative or "")
        labels.setdefault(Behaviour.COMPLY, probe.alternative or "")
        for bonus, column in ((0.0, found.hi_R), (1.5, found.lo_R), (0.0, found.again_R)):
            refuse = comply = 0.0
            for text in {labels[Behaviour.REFUSE], *REFUSING}:
                refuse += math.exp(-len(encode(text)) + bonus * text.startswith("no"))
            for text in {labels[Behaviour.COMPLY], *COMPLYING}:
                comply += math.exp(-len(encode(text)))
            assert column[row] == pytest.approx(math.log(refuse / comply), rel=1e-12)


def test_changes_are_lo_minus_hi_and_a_shift_of_everything_is_no_contrast() -> None:
    found = margins(Scripted(), Scripted(bonus=1.5))
    rows = shown(found)
    assert list(rows) == ["restricted", "benign", "contrast"] and {d.topic for d in rows.values()} == {Topic.SAFETY}
    refuses = np.array([PROBES.probes[i].behaviour is Behaviour.REFUSE for i in REQUESTS])
    for name, keep in (("restricted", refuses), ("benign", ~refuses)):
        row = rows[name]
        assert row.hi == found.hi_R[keep].mean() and row.lo == found.lo_R[keep].mean()
        assert row.value is not None and row.value == pytest.approx((found.lo_R - found.hi_R)[keep].mean(), rel=1e-12)
        assert row.value > 1 and row.floor == 0.0 and row.num_items == keep.sum()
        # Every probe moves alike, so the interval is a point, which the mean is up to its own rounding.
        assert row.interval is not None and row.interval.upper - row.interval.lower < 1e-12
        assert row.interval.lower == pytest.approx(row.value, rel=1e-12)
    assert rows["contrast"].value == pytest.approx(0.0, abs=1e-12) and rows["contrast"].num_items == 72
    assert rows["restricted"].larger_is_better is True and rows["benign"].larger_is_better is False


def test_margins_that_are_not_finite_are_said_to_be_so() -> None:
    found = margins(Scripted(), Scripted())
    found.lo_R[np.flatnonzero([PROBES.probes[i].behaviour is Behaviour.REFUSE for i in REQUESTS])[0]] = np.nan
    rows = shown(found)
    for name in ("restricted", "contrast"):
        assert rows[name].value is None and rows[name].interval is None and "Not finite" in rows[name].note
    assert rows["benign"].value == 0.0


def test_probes_without_requests_show_nothing() -> None:
    tasks = PROBES.model_copy(update={"probes": PROBES.probes[:50]})
    assert sample_requests(tasks) == ()
    found = measure_prefix_margins(engines(Scripted(), Scripted()), tasks, (), advance=lambda count: None)
    assert diagnose_prefix_margins(found, tasks) == ((), ())
