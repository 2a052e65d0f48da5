"""Sample reports: one for every verdict, one decided exactly, two with gaps, one full of hostile text."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable

import pytest

from quantaudit.core.decision import Outcome
from quantaudit.core.recipe import Recipe
from quantaudit.core.report import AuditReport, Control, ExpertMap, ProbeSummary
from quantaudit.core.verdict import Admission, Verdict
from quantaudit.reporting.html import render_html
from tests.reporting.sample import HOSTILE, report
from tests.reporting.sample_clauses import clauses, decision, estimate


@pytest.fixture(scope="session")
def admitted() -> AuditReport:
    """Returns an ADMIT with one alarm that fired."""
    sentence = "ADMIT: all 20 gates pass; the closest is task[sorting], which stays inside 72 % of its margin."
    verdict = Verdict(
        admission=Admission.ADMIT, sentence=sentence, would_change=("Accuracy on sorting lower by another 0.6 points.",)
    )
    return report(verdict, clauses(1.0), recipe="k3-w4a8")


@pytest.fixture(scope="session")
def rejected() -> AuditReport:
    """Returns a REJECT at the degeneracy gate: safety may not be read."""
    verdict = Verdict(
        admission=Admission.REJECT,
        sentence="REJECT at degeneracy: the deployed model predicts its answers worse than a table of byte frequencies "
        "does, at least 6.2 nats a token worse, so nothing after this gate says anything about its behaviour.",
        deciding=("degeneracy",),
        would_change=("A recipe that leaves the routed experts above 2 bits.", "int3 or wider on layers 1 to 5."),
        safety_may_be_read=False,
    )
    return report(verdict, clauses(1.0, degenerate=True), recipe="int2", loss=0.4)


@pytest.fixture(scope="session")
def undecided() -> AuditReport:
    """Returns an INCONCLUSIVE for want of probes, one control undecided."""
    verdict = Verdict(
        admission=Admission.INCONCLUSIVE,
        sentence="INCONCLUSIVE: two gates are undecided; 1,240 probes a family would decide them.",
        deciding=("task[sorting]", "task[two-step]"),
        would_change=("1,240 fresh probes of sorting.", "1,240 fresh probes of two-step."),
    )
    whole = report(verdict, clauses(1.1, undecided=True), recipe="nvfp4")
    broken = whole.controls[2].model_copy(
        update={"outcome": Outcome.UNDECIDED, "detail": "task[two-step] did not reject."}
    )
    return whole.model_copy(update={"controls": (*whole.controls[:2], broken)})


@pytest.fixture(scope="session")
def identical() -> AuditReport:
    """Returns an ADMIT decided exactly: no estimate anywhere, no witness, no discrepancy."""
    exact = tuple(
        c.model_copy(
            update={
                "estimate": None,
                "lo": c.hi,
                "decision": decision(Outcome.PASS, reason="Both sides are equal, exactly.", is_exact=True),
            }
        )
        for c in clauses(1.0)
    )
    sentence = "ADMIT, decided exactly: lo equals hi bit for bit under the same execution."
    whole = report(Verdict(admission=Admission.ADMIT, sentence=sentence), exact, recipe="identity", loss=0.0)
    return whole.model_copy(update={"witnesses": (), "discrepancies": (), "recipe": Recipe(name="identity")})


@pytest.fixture(scope="session")
def sparse(undecided: AuditReport) -> AuditReport:
    """Returns a report in which everything that may be missing is missing."""
    bare = tuple(
        c.model_copy(
            update={
                "estimate": None,
                "hi": None,
                "lo": None,
                "floor": None,
                "decision": decision(Outcome.UNDECIDED, reason="Nothing was measured."),
            }
        )
        for c in undecided.clauses
    )
    empty = ProbeSummary(
        name="none", source="", probes_digest="", split="audit", num_probes=0, num_scored_tokens=0, families=()
    )
    hollow = ExpertMap(name="load", title="Load", unit="", larger_is_better=None, layers=(0,), values=((None, None),))
    nothing = {
        "controls": (),
        "layer_profiles": (),
        "expert_maps": (hollow,),
        "diagnostics": (),
        "series": (),
        "ladder": None,
        "flips": (),
        "witnesses": (),
        "discrepancies": (),
        "not_examined": (),
        "notes": (),
        "recipe": None,
        "probes": empty,
        "clauses": bare,
    }
    return undecided.model_copy(update=nothing)


@pytest.fixture(scope="session")
def unbounded(undecided: AuditReport) -> AuditReport:
    """Returns a report with an interval without bounds and an exact gate that failed."""
    endless = estimate(0.01, math.inf, rate=0.1)
    first = undecided.clauses[0]
    failed = first.model_copy(
        update={"decision": decision(Outcome.FAIL, reason="3 scales are infinite.", is_exact=True)}
    )
    rest = tuple(c.model_copy(update={"estimate": endless}) for c in undecided.clauses[1:])
    return undecided.model_copy(update={"clauses": (failed, *rest)})


def hostile_details(admitted: AuditReport) -> dict[str, object]:
    """Returns diagnostics, series, ladder and flips in which every free text attacks its reader."""
    diagnostic = admitted.diagnostics[0].model_copy(update=dict.fromkeys(("name", "title", "unit", "note"), HOSTILE))
    texts = {**dict.fromkeys(("name", "title", "axis", "unit"), HOSTILE), "labels": (HOSTILE,) * 7}
    assert admitted.ladder is not None
    rungs = tuple(rung.model_copy(update={"scheme": HOSTILE}) for rung in admitted.ladder.rungs)
    named = ("probe_id", "family", "cluster", "prompt", "expected", "hi_response", "lo_response", "change")
    return {
        "diagnostics": (diagnostic,),
        "series": (admitted.series[1].model_copy(update=texts),),
        "ladder": admitted.ladder.model_copy(update={"rungs": rungs, "reason": HOSTILE}),
        "flips": (admitted.flips[0].model_copy(update=dict.fromkeys(named, HOSTILE)),),
    }


@pytest.fixture(scope="session")
def hostile(admitted: AuditReport) -> AuditReport:
    """Returns a report in which every free text attacks its reader."""
    witness = admitted.witnesses[0].model_copy(
        update=dict.fromkeys(
            ("family", "cluster", "prompt", "expected", "hi_response", "lo_response", "change"), HOSTILE
        )
    )
    clause = admitted.clauses[3].model_copy(
        update={
            "name": f"task[{HOSTILE}]",
            "family": HOSTILE,
            "unit": HOSTILE,
            "decision": admitted.clauses[3].decision.model_copy(update={"reason": HOSTILE}),
        }
    )
    table = admitted.expert_maps[0].model_copy(update={"name": HOSTILE, "title": HOSTILE, "unit": HOSTILE})
    profile = admitted.layer_profiles[0].model_copy(update={"name": HOSTILE, "title": HOSTILE, "unit": HOSTILE})
    some_family = admitted.probes.families[0].model_copy(update={"name": HOSTILE})
    return admitted.model_copy(
        update={
            "verdict": Verdict(
                admission=Admission.ADMIT, sentence=HOSTILE, deciding=(HOSTILE,), would_change=(HOSTILE,)
            ),
            "hi": admitted.hi.model_copy(
                update={"label": HOSTILE, "source": HOSTILE, "notes": (HOSTILE,), "schemes": {HOSTILE: HOSTILE}}
            ),
            "lo": admitted.lo.model_copy(update={"label": HOSTILE, "source": HOSTILE}),
            "clauses": (*admitted.clauses[:3], clause, *admitted.clauses[4:]),
            "controls": (Control(name=HOSTILE, outcome=Outcome.FAIL, detail=HOSTILE, covers=(HOSTILE,)),),
            "probes": admitted.probes.model_copy(update={"families": (some_family,), "name": HOSTILE}),
            "witnesses": (witness,),
            "expert_maps": (table,),
            "layer_profiles": (profile,),
            **hostile_details(admitted),
            "discrepancies": (admitted.discrepancies[0].model_copy(update={"tensor": HOSTILE, "hi_bits": HOSTILE}),),
            "not_examined": (HOSTILE,),
            "notes": (HOSTILE,),
            "run": admitted.run.model_copy(update={"command": HOSTILE}),
        }
    )


@pytest.fixture(scope="session")
def wide(admitted: AuditReport) -> AuditReport:
    """Returns a report with maps of the size of a full model: 60 layers of 384 experts."""
    rng = random.Random(5)
    values = tuple(tuple(19 + rng.gauss(0, 1) for _ in range(384)) for _ in range(60))
    layers = tuple(range(1, 61))
    tables = tuple(t.model_copy(update={"layers": layers, "values": values}) for t in admitted.expert_maps)
    return admitted.model_copy(update={"expert_maps": tables})


@pytest.fixture(scope="session")
def pages(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Returns the HTML page of a sample by its name; each is made once."""

    @functools.cache
    def page(name: str) -> str:
        return render_html(request.getfixturevalue(name))

    return page
