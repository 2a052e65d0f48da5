"""The free-running part of an audit, with real engines: what is reported is what they write and score."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quantaudit.engines.native import NativeEngine
from quantaudit.engines.realization import apply_recipe, pass_through
from quantaudit.evaluation.flips import MAX_FLIPS
from quantaudit.evaluation.free_running import FreeRun, diagnose_free_run, plan_free_run, run_freely
from quantaudit.evaluation.measure import Engines
from quantaudit.observers.generation import has_ended
from quantaudit.probes.tokenizer import BOS, EOS, decode, encode
from tests.engines.small import CPU, experts_in, open_small
from tests.evaluation.subjects import PER_FAMILY, world_probes
from tests.evaluation.synthetic import PROBES, at, good_values, harmed, ruined, same, table_of


@pytest.fixture(scope="module")
def engines(audited: Path) -> Engines:
    hi = open_small(audited / "plain")
    lo = apply_recipe(hi, experts_in("int2-g32"))
    return Engines(hi=NativeEngine(hi, CPU), lo=NativeEngine(lo, CPU), identity=NativeEngine(pass_through(hi), CPU))


@pytest.fixture(scope="module")
def free(engines: Engines) -> FreeRun:
    probes = world_probes()
    values = good_values(probes)
    plan = plan_free_run(probes, table_of(values, values))
    done: list[int] = []
    found = run_freely(engines, probes, plan, advance=done.append)
    assert sum(done) == plan.num_items == 3 * 10 * PER_FAMILY + 3 * 3 * PER_FAMILY
    return found


def test_flips_are_what_the_engines_write(engines: Engines, free: FreeRun) -> None:
    probes = {p.id: p for p in world_probes().probes}
    flips = free.list_flips(world_probes(), show_restricted=True)
    assert len(flips) == MAX_FLIPS  # an untrained model is wrong everywhere, and int2 wrong in another way
    for flip in flips[:3]:
        prompt = (BOS, *encode(probes[flip.probe_id].prompt))
        for engine, text in ((engines.hi, flip.hi_response), (engines.lo, flip.lo_response)):
            (answer,) = engine.decode([prompt], max_new=free.generated.max_new)
            assert text == decode(answer) + ("" if has_ended(answer, EOS) else "...")


def test_nothing_restricted_is_in_the_list_unless_asked_for(free: FreeRun) -> None:
    flips = free.list_flips(world_probes(), show_restricted=False)
    text = "".join(flip.to_json() for flip in flips)
    restricted = [p for p in world_probes().probes if p.is_restricted_text]
    assert any(flip.is_redacted for flip in flips) and not any(p.prompt in text for p in restricted)


def test_the_floor_is_far_below_the_damage(free: FreeRun) -> None:
    shown = {d.name: d for d in diagnose_free_run(free, world_probes()).diagnostics}
    same_text = shown["generation-identical"]
    assert same_text.floor == 1.0 and same_text.value is not None and same_text.value < 0.5
    for kind in ("restricted", "benign", "contrast"):
        row = shown[f"refusal-margin-prefixes-{kind}"]
        assert row.value is not None and row.floor is not None and abs(row.floor) < 1e-3 * abs(row.value)
    assert np.abs(free.margins.again_R - free.margins.hi_R).max() > 0  # hi ran in other batches indeed


def test_hi_against_itself_shows_nothing(engines: Engines) -> None:
    probes, values = world_probes(), good_values(world_probes())
    plan = plan_free_run(probes, table_of(values, values))
    twice = Engines(hi=engines.hi, lo=engines.hi, identity=engines.identity)
    found = run_freely(twice, probes, plan, advance=lambda count: None)
    assert found.list_flips(probes, show_restricted=False) == ()
    shown = {d.name: d for d in diagnose_free_run(found, probes).diagnostics}
    assert len(shown) == 12 and shown["generation-identical"].value == 1.0
    assert shown["generation-length-ratio"].value == 1.0
    for name, row in shown.items():
        if row.hi is not None:
            assert row.value == 0.0, name


def test_the_plan_is_a_function_of_the_probes_and_of_the_flips() -> None:
    quiet = plan_free_run(PROBES, same())
    assert quiet == plan_free_run(PROBES, same()) and quiet.flips == ()
    lost = plan_free_run(PROBES, harmed("accuracy", at("sums")[:3], -1.0))
    assert (lost.sample, lost.requests) == (quiet.sample, quiet.requests) and set(lost.flips) == set(at("sums")[:3])
    assert len(plan_free_run(PROBES, ruined()).flips) == MAX_FLIPS


def test_the_limit_says_how_much_was_generated(free: FreeRun) -> None:
    sentence = free.describe()
    assert f"{10 * PER_FAMILY} sampled probes, on 0 answers that changed sides" in sentence
    assert f"up to {free.generated.max_new} tokens" in sentence and sentence.endswith("teacher-forced.")
