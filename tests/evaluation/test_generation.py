"""Generated continuations: whose they are, and every number about them against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest

from quantaudit.core.diagnostic import Diagnostic, Series, Topic
from quantaudit.evaluation.generation import SPARE_TOKENS, Generated, diagnose_generation, generate, sample_probes
from quantaudit.probes.tokenizer import EOS, encode
from tests.evaluation.scripted import Scripted, engines, right
from tests.evaluation.synthetic import BEHAVIOURS, PROBES, at, probe_set

SAMPLE = sample_probes(PROBES)
MAX_NEW = len("ok 199") + 1 + SPARE_TOKENS
LOST = {PROBES.probes[i].prompt: (*encode("zz"), EOS) for i in SAMPLE[:5]}
LATE = {PROBES.probes[SAMPLE[5]].prompt: (*encode(PROBES.probes[SAMPLE[5]].response), *encode("!!"), EOS)}
STUCK = {PROBES.probes[i].prompt: tuple(encode("ab" * 40)) for i in SAMPLE[-3:]}


@pytest.fixture(scope="module")
def generated() -> Generated:
    """What a lo gives that loses five answers, goes on behind one and loops on three."""
    told: list[int] = []
    hi, lo = Scripted(), Scripted(script=LOST | LATE | STUCK)
    found = generate(engines(hi, lo), PROBES, SAMPLE, (3, 4), advance=told.append)
    assert told == [2 * len({*SAMPLE, 3, 4}), len(SAMPLE)]
    together = [80, len({*SAMPLE, 3, 4}) - 80]
    assert hi.asked == [*together, 50, 50, 20] and lo.asked == together
    return found


@pytest.fixture(scope="module")
def shown(generated: Generated) -> dict[str, Diagnostic | Series]:
    found = diagnose_generation(generated, PROBES)
    everything = {d.name: d for d in found.diagnostics} | {s.name: s for s in found.series}
    assert {d.topic for d in everything.values()} == {Topic.GENERATION}
    return everything


def number(shown: dict[str, Diagnostic | Series], name: str) -> Diagnostic:
    found = shown[f"generation-{name}"]
    assert isinstance(found, Diagnostic) and found.num_items == len(SAMPLE)
    return found


def test_the_sample_has_as_many_probes_of_every_family() -> None:
    assert list(SAMPLE) == sorted(set(SAMPLE)) and SAMPLE == sample_probes(probe_set())
    assert [sum(i in SAMPLE for i in at(family)) for family in BEHAVIOURS] == [24] * 5
    gaps = np.diff([i for i in SAMPLE if i in at("words")])
    assert set(gaps) <= {8, 9}
    few = probe_set(per_family=10, clusters=5)
    assert sample_probes(few) == tuple(range(50))


@pytest.mark.parametrize(("per_family", "sampled"), [(32, 12), (60, 15), (96, 24), (600, 24)])
def test_a_quick_look_generates_less(per_family: int, sampled: int) -> None:
    quick = probe_set(per_family=per_family, clusters=4)
    assert len(sample_probes(quick)) == sampled * len(quick.families())


def test_everything_is_generated_once_and_the_sample_is_what_is_measured(generated: Generated) -> None:
    assert set(generated.answers) == {*SAMPLE, 3, 4} and set(generated.again) == set(SAMPLE)
    assert generated.max_new == MAX_NEW and len(generated.pairs()) == len(SAMPLE)
    assert all(len(pair.hi) <= MAX_NEW and len(pair.lo) <= MAX_NEW for pair in generated.pairs())
    for i, pair in generated.answers.items():
        assert pair.hi == right(PROBES.probes[i])


def test_agreement_is_a_share_of_the_sample(shown: dict[str, Diagnostic | Series]) -> None:
    same = number(shown, "identical")
    assert same.value == pytest.approx(1 - 9 / len(SAMPLE), rel=1e-15) and same.floor == 1.0
    assert same.interval is not None and 0 < same.interval.lower < 1 - 9 / len(SAMPLE) < same.interval.upper < 1


def test_ends_and_loops_are_counted_on_both_sides(shown: dict[str, Diagnostic | Series]) -> None:
    for name in ("unended", "loops"):
        rate = number(shown, name)
        assert (rate.hi, rate.lo, rate.value, rate.floor) == (0.0, 3 / len(SAMPLE), 3 / len(SAMPLE), 0.0)
        assert rate.interval is not None and rate.interval.upper > 3 / len(SAMPLE)


def test_the_length_ratio_is_that_of_the_totals(shown: dict[str, Diagnostic | Series], generated: Generated) -> None:
    ratio = number(shown, "length-ratio")
    hi = lo = 0
    for pair in generated.pairs():
        hi, lo = hi + len(pair.hi), lo + len(pair.lo)
    assert ratio.value == lo / hi > 1 and ratio.floor == 1.0
    assert ratio.interval is not None and ratio.interval.lower < ratio.value < ratio.interval.upper


def test_survival_is_read_off_the_pairs(shown: dict[str, Diagnostic | Series], generated: Generated) -> None:
    survival = shown["generation-survival"]
    assert isinstance(survival, Series) and survival.labels[0] == "1"
    together = 1.0
    for step in range(1, len(survival.labels) + 1):
        reach = parted = 0
        for pair in generated.pairs():
            shared = 0
            while shared < min(map(len, pair)) and pair.hi[shared] == pair.lo[shared]:
                shared += 1
            parts = pair.hi != pair.lo
            reach += shared + parts >= step
            parted += parts and shared + 1 == step
        together *= 1 - parted / reach
        assert survival.counts[step - 1] == reach
        assert survival.values[step - 1] == pytest.approx(together, rel=1e-14)
    assert set(survival.floor) == {1.0} and together < 1
    assert number(shown, "median-parting").value is None


def test_a_median_is_shown_once_half_have_parted() -> None:
    lo = Scripted(script={p.prompt: (right(p)[0], 1, EOS) for p in PROBES.probes})
    found = generate(engines(Scripted(), lo), PROBES, SAMPLE, (), advance=lambda count: None)
    median = next(d for d in diagnose_generation(found, PROBES).diagnostics if d.name.endswith("median-parting"))
    assert median.value == 2 and median.floor is None


def test_agreement_by_family(shown: dict[str, Diagnostic | Series], generated: Generated) -> None:
    series = shown["generation-identical-by-family"]
    assert isinstance(series, Series) and series.labels == tuple(BEHAVIOURS) and set(series.floor) == {1.0}
    for family, value, count in zip(series.labels, series.values, series.counts, strict=True):
        mine = [generated.answers[i] for i in SAMPLE if PROBES.probes[i].family == family]
        assert (count, value) == (len(mine), sum(p.hi == p.lo for p in mine) / len(mine))
    assert series.values[0] is not None and series.values[0] < 1.0


def test_a_hi_that_is_not_itself_shows_in_the_floor() -> None:
    class Moody(Scripted):
        """Writes something else in small batches."""

        def decode(self, prompts: list[tuple[int, ...]], *, max_new: int) -> list[tuple[int, ...]]:
            answers = super().decode(prompts, max_new=max_new)
            return [(1, EOS)] * len(answers) if len(prompts) in (50, 20) else answers

    found = generate(engines(Moody(), Scripted()), PROBES, SAMPLE, (), advance=lambda count: None)
    same = diagnose_generation(found, PROBES).diagnostics[0]
    assert same.value == 1.0 and same.floor == 0.0
