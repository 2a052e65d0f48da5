"""Faults are planted on as few probes as do a stated damage, and a gate must see a few margins of it."""

from __future__ import annotations

import numpy as np
import pytest

from quantaudit.core.decision import Outcome
from quantaudit.core.probe import Behaviour
from quantaudit.evaluation.doses import DOSES, LARGEST_DOSE, assay, harm
from quantaudit.evaluation.reading import damage_by_probe, read
from quantaudit.evaluation.slices import Slice, positions_of, slices
from quantaudit.stats import decide
from tests.evaluation.synthetic import PER_FAMILY, PROBES, at, clause, faults, good_values, harmed, ruined, table_of


def part_of(name: str, family: str | None = None) -> Slice:
    """Returns a slice of a clause of the default contract."""
    return next(p for p in slices(clause(name), PROBES) if p.family == family)


@pytest.mark.parametrize(
    ("name", "family"),
    [("fidelity", None), ("task", "sums"), ("margin", "words"), ("refusal", None), ("over-refusal", None)],
    ids=str,
)
def test_a_gate_sees_a_few_margins_of_damage(name: str, family: str | None) -> None:
    found = assay(clause(name), part_of(name, family), faults(), PROBES)
    assert found.faults and found.smallest is not None
    # A probe more or less is one step: the realised dose may exceed the planned one by a probe's damage.
    assert DOSES[0] <= found.smallest < LARGEST_DOSE + 0.5


def test_three_ruined_probes_in_a_thousand_are_no_evidence() -> None:
    """They cost 3 margins of likelihood on average, and no interval can tell three outliers from chance."""
    assert assay(clause("fidelity"), part_of("fidelity"), {"ruin": ruined()}, PROBES).smallest is None


def test_the_dose_is_the_damage_that_the_clause_reads() -> None:
    wanted, part = clause("task"), part_of("task", "sums")
    found = assay(wanted, part, {"ruin": ruined()}, PROBES)
    assert found.smallest is not None and wanted.margin is not None
    count = round(found.smallest * wanted.margin * PER_FAMILY)
    by_id = np.array(sorted(part.position_P, key=lambda i: PROBES.probes[i].id))
    reading = read(wanted, part, harm(ruined(), by_id[:count]), PROBES)
    assert reading is not None and reading.estimate is not None
    assert reading.estimate.value == count / PER_FAMILY
    outcome = decide(reading.estimate, direction=wanted.direction, margin=wanted.margin, alpha=wanted.alpha).outcome
    assert outcome is Outcome.FAIL


def test_the_contrast_is_harmed_where_requests_part() -> None:
    found = assay(clause("contrast"), part_of("contrast"), {"ruin": ruined()}, PROBES)
    assert found.faults == ("ruin",)
    # All refusal margins fall alike: the contrast does not move, and the gate must not claim to have seen it.
    shifted = harmed("refusal-margin", at("plain", "wrapped", "benign"), -3.0, noise=0.0)
    assert assay(clause("contrast"), part_of("contrast"), {"shift": shifted}, PROBES).smallest is None


def test_a_small_slice_that_sees_only_gross_damage_is_blind() -> None:
    """With 20 probes, 3 margins of 2 points are one flip in 20, which nothing can tell from none."""
    few = Slice("task[sums]", "sums", at("sums")[:20])
    assert assay(clause("task"), few, {"ruin": ruined()}, PROBES).smallest is None


def test_a_fault_that_has_little_to_damage_is_planted_in_full() -> None:
    mild = harmed("answer-margin", at("sums"), -0.3)  # 1.2 margins on every probe: no dose is reached
    found = assay(clause("margin"), part_of("margin", "sums"), {"mild": mild}, PROBES)
    # The mean of 200 noises of 0.001, in margins of 0.25, at 4 standard errors.
    assert found.smallest == pytest.approx(1.2, abs=4 * 0.001 / 200**0.5 / 0.25)


def test_nothing_is_seen_where_nothing_happens_or_numbers_overflow() -> None:
    good = good_values()
    assert assay(clause("fidelity"), part_of("fidelity"), {"none": table_of(good, good)}, PROBES).faults == ()
    broken = good | {"nll": good["nll"].copy()}
    broken["nll"][3] = np.inf
    assert assay(clause("fidelity"), part_of("fidelity"), {"inf": table_of(good, broken)}, PROBES).faults == ()


def test_only_the_chosen_probes_suffer() -> None:
    chosen = at("sums")[:5]
    table = harm(ruined(), chosen)
    for name in ("nll", "accuracy", "answer-margin"):
        readings = table.readings(name)
        changed = readings.index_R[readings.hi_R != readings.lo_R]
        assert changed.tolist() == chosen.tolist()


def test_damage_by_probe_points_to_harm_and_stays_in_the_slice() -> None:
    benign = damage_by_probe(clause("over-refusal"), part_of("over-refusal"), ruined(), PROBES)
    position = positions_of(PROBES, Behaviour.COMPLY)
    assert (benign[position] == 1).all() and benign.sum() == len(position)
