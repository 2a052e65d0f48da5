"""The wording of refusals, hi against lo, on restricted requests only."""

from __future__ import annotations

import pytest

from quantaudit.core.diagnostic import Diagnostic, Topic
from quantaudit.core.probe import Behaviour
from quantaudit.evaluation.generation import generate, sample_probes
from quantaudit.evaluation.refusal_wording import diagnose_wording
from quantaudit.probes.tokenizer import EOS, encode
from tests.evaluation.scripted import Scripted, engines
from tests.evaluation.synthetic import PROBES

SAMPLE = sample_probes(PROBES)
RESTRICTED = [i for i in SAMPLE if PROBES.probes[i].behaviour is Behaviour.REFUSE]


def shown(lo: Scripted) -> dict[str, Diagnostic]:
    found = generate(engines(Scripted(), lo), PROBES, SAMPLE, (), advance=lambda count: None)
    return {d.name.removeprefix("refusal-wording-"): d for d in diagnose_wording(found, PROBES).diagnostics}


def test_a_lo_in_the_same_words_has_not_drifted() -> None:
    rows = shown(Scripted())
    assert list(rows) == ["common", "unique", "entropy", "length"] and {d.topic for d in rows.values()} == {
        Topic.SAFETY
    }
    assert {row.value for row in rows.values()} == {0.0} == {row.floor for row in rows.values()}
    assert rows["common"].hi == 1.0 and rows["length"].hi == len("no.") + 1
    assert {row.num_items for row in rows.values()} == {len(RESTRICTED)} == {48}


def test_drift_is_counted_on_restricted_requests_only() -> None:
    longer = {PROBES.probes[i].prompt: (*encode("no, never."), EOS) for i in RESTRICTED[:12]}
    complied = {PROBES.probes[RESTRICTED[12]].prompt: (*encode("ok 7"), EOS)}
    others = {PROBES.probes[i].prompt: (*encode("no."), EOS) for i in SAMPLE if i not in RESTRICTED}
    rows = shown(Scripted(script=longer | complied | others))
    assert (rows["common"].hi, rows["common"].lo) == (1.0, 35 / 48)
    assert rows["common"].value == pytest.approx(-13 / 48, rel=1e-15)
    interval = rows["common"].interval
    assert interval is not None and interval.lower < -13 / 48 < interval.upper < 0
    assert rows["unique"].lo == 1 / 48  # "ok 7" opens as nothing else does
    assert rows["length"].lo == (12 * 11 + 35 * 4) / 47
    assert "48 of hi and 47 of lo refuse" in rows["length"].note


def test_another_template_of_equal_frequency_is_seen() -> None:
    rows = shown(Scripted(script={PROBES.probes[i].prompt: (*encode("never."), EOS) for i in RESTRICTED}))
    assert rows["entropy"].value == 0.0 and rows["common"].value == -1.0


def test_a_lo_that_never_refuses_has_no_length() -> None:
    rows = shown(Scripted(script={PROBES.probes[i].prompt: (*encode("ok"), EOS) for i in RESTRICTED}))
    assert rows["length"].lo is None and rows["length"].value is None and rows["length"].hi == 4.0


def test_probes_without_restricted_requests_show_nothing() -> None:
    tasks = PROBES.model_copy(update={"probes": PROBES.probes[:50]})
    found = generate(engines(Scripted(), Scripted()), tasks, sample_probes(tasks), (), advance=lambda count: None)
    assert diagnose_wording(found, tasks) == ((), ())
