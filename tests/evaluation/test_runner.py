"""A whole audit of a small model: from folders on disk to a verdict that can be repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantaudit.checkpoint.writer import write_checkpoint
from quantaudit.composition import carry_out
from quantaudit.core.decision import Outcome
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.core.probe import Split
from quantaudit.core.recipe_file import load_recipe
from quantaudit.core.report import AuditReport
from quantaudit.core.verdict import Admission
from quantaudit.numerics import fake_quantize, get_scheme, quantize
from tests.engines.small import SMALL, small_state, write_small
from tests.evaluation.subjects import audit, order, world_probes


def gates(report: AuditReport) -> dict[str, Outcome]:
    """Returns the outcomes of the gates."""
    return {r.name: r.decision.outcome for r in report.gates()}


@pytest.fixture(scope="module")
def w4a8(audited: Path) -> AuditReport:
    return audit(audited / "plain", recipe=load_recipe("k3-w4a8"))


@pytest.fixture(scope="module")
def w4a16(audited: Path) -> AuditReport:
    return audit(audited / "plain", recipe=load_recipe("k3-w4a16"))


def test_the_identity_recipe_is_admitted_exactly(audited: Path) -> None:
    report = audit(audited / "plain", recipe=load_recipe("identity"))
    assert report.verdict.admission is Admission.ADMIT and "decided exactly" in report.verdict.sentence
    assert set(gates(report).values()) == {Outcome.PASS} and all(r.decision.is_exact for r in report.gates())
    assert report.hi.weights_digest == report.lo.weights_digest
    assert report.witnesses == () and report.discrepancies == ()
    assert [c.outcome for c in report.controls][:2] == [Outcome.PASS, Outcome.PASS]


@pytest.mark.parametrize("kind", ["plain", "packed"])
def test_a_checkpoint_against_itself_is_admitted_exactly(audited: Path, kind: str) -> None:
    report = audit(audited / kind, lo=audited / kind)
    assert report.verdict.admission is Admission.ADMIT and all(r.decision.is_exact for r in report.gates())


def test_the_packed_checkpoint_is_the_recipe(audited: Path, w4a16: AuditReport) -> None:
    by_path, by_recipe = audit(audited / "plain", lo=audited / "packed"), w4a16
    assert by_path.lo.weights_digest == by_recipe.lo.weights_digest != by_path.hi.weights_digest
    assert [(r.name, r.hi, r.lo, r.estimate) for r in by_path.clauses] == [
        (r.name, r.hi, r.lo, r.estimate) for r in by_recipe.clauses
    ]
    assert by_path.lo.stored_bits_per_expert_weight == 4 + 8 / 32
    assert by_path.lo.num_quantized_tensors == 9 * SMALL.num_experts


def test_the_same_audit_gives_the_same_report(audited: Path, w4a8: AuditReport, w4a16: AuditReport) -> None:
    again = audit(audited / "plain", recipe=load_recipe("k3-w4a8"))
    assert again.report_digest() == w4a8.report_digest() != w4a16.report_digest()
    assert again.model_dump(exclude={"run"}) == w4a8.model_dump(exclude={"run"})
    assert AuditReport.from_json(w4a8.to_json()).report_digest() == w4a8.report_digest()


def test_an_untrained_model_is_rejected_as_degenerate(audited: Path) -> None:
    report = audit(audited / "plain", recipe=load_recipe("int2"))
    assert report.verdict.admission is Admission.REJECT
    assert report.verdict.deciding[0] == "degeneracy" and not report.verdict.safety_may_be_read


def test_a_recipe_that_changes_nothing_is_not_measured(tmp_path: Path) -> None:
    scheme = get_scheme("mxfp4-even")
    on_grid = {name: fake_quantize(value, scheme) for name, value in small_state() if ".experts." in name}
    folder = write_small(tmp_path / "grid", changed=on_grid)
    with pytest.raises(NotMeasuredError, match="the recipe changed none of"):
        audit(folder, recipe=load_recipe("k3-w4a16"))
    assert audit(folder, recipe=load_recipe("k3-w4a8")).hi.weights_digest  # the inputs are quantized: measured


def test_packed_weights_under_their_own_scheme_are_admitted_exactly(audited: Path) -> None:
    report = audit(audited / "packed", recipe=load_recipe("k3-w4a16"))
    assert report.verdict.admission is Admission.ADMIT and "decided exactly" in report.verdict.sentence
    assert any("no full-precision baseline" in note for note in report.notes)


def test_one_stack_left_out_of_the_declared_scheme_is_rejected_at_integrity(audited: Path, tmp_path: Path) -> None:
    scheme = get_scheme("mxfp4-even")
    left_out = "model.layers.2.block_sparse_moe.experts.w1.weight"
    mixed = {
        name: quantize(value, scheme) if ".experts." in name and name != left_out else value
        for name, value in small_state()
    }
    write_checkpoint(tmp_path / "mixed", SMALL, mixed.items(), scheme=None, shard_bytes=None)
    report = audit(audited / "plain", lo=tmp_path / "mixed")
    assert report.verdict.admission is Admission.REJECT and report.verdict.deciding[0] == "integrity"
    assert "layers.2.experts.w1 should be held in mxfp4" in report.verdict.sentence
    assert report.lo.num_quantized_tensors == 8 * SMALL.num_experts


def test_two_architectures_are_not_compared(audited: Path, tmp_path: Path) -> None:
    other = order(audited / "plain", lo=audited / "packed")
    object.__setattr__(other.lo, "config", None)
    with pytest.raises(InputError, match="another architecture"):
        carry_out(other, lambda stage, done, total: None)


def test_stages_report_their_progress_to_the_end(audited: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    report = carry_out(order(audited / "plain", recipe=load_recipe("identity")), lambda *told: heard.append(told))
    for stage in ("open", "weights", "forward", "generate", "decide"):
        told = [(done, total) for name, done, total in heard if name == stage]
        assert told[0][0] == 0 and told[-1][0] == told[-1][1]
        assert told == sorted(told)
    assert [s.name for s in report.run.stages] == ["weights", "forward", "generate", "ladder", "decide"]
    assert report.probes.num_probes == len(world_probes().probes)


def test_probes_of_two_splits_or_none_are_refused(audited: Path) -> None:
    given = order(audited / "plain", recipe=load_recipe("identity"))
    first = world_probes().probes[0]
    mixed = (first.model_copy(update={"split": Split.SELECT}), *world_probes().probes[1:])
    for probes, error in ((mixed, InputError), ((), NotMeasuredError)):
        object.__setattr__(given, "probes", world_probes().model_copy(update={"probes": probes}))
        with pytest.raises(error):
            carry_out(given, lambda stage, done, total: None)


def test_restricted_text_never_reaches_the_report(w4a8: AuditReport, w4a16: AuditReport) -> None:
    assert any(w.is_redacted for report in (w4a8, w4a16) for w in report.witnesses)
    text = w4a8.to_json() + w4a16.to_json()
    restricted = [p for p in world_probes().probes if p.is_restricted_text]
    assert restricted and not any(p.prompt in text for p in restricted)
