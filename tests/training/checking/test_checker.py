"""A checker follows one run: it is silent on clean steps, names what appears once, and refuses what makes no sense."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quantaudit.core.errors import InputError
from quantaudit.core.step_log import UNEXPLAINED, Finding, FindingKind, Side, TransportCheck
from quantaudit.engines.stored import quantize_stack, restore, store
from quantaudit.identity.mismatches.protocol import Weight
from quantaudit.identity.mismatches.registry import get_mismatch
from quantaudit.numerics import fake_quantize, get_scheme
from quantaudit.training.checking.checker import StepChecker
from quantaudit.training.checking.evidence import group_layers
from quantaudit.training.checking.schedule import Schedule
from quantaudit.training.checking.settings import CheckSettings
from quantaudit.training.checking.sides import Shipped, Sides, decode_shipped
from tests.training.checking.made import DENSE, EVEN, EXPERTS, NAMES, change, flip_code, sides, stored

FIRST = NAMES[0]


def after_clean_steps(last: Sides, *, num_clean: int = 2, settings: CheckSettings | None = None) -> tuple[Finding, ...]:
    """Checks some clean steps and then the given one, and returns what was found at that."""
    checker = StepChecker(settings)
    for step in range(num_clean):
        assert checker.check(step, sides(step)).findings == ()
    return checker.check(num_clean, last).findings


def only(findings: tuple[Finding, ...]) -> Finding:
    (finding,) = findings
    return finding


def test_clean_steps_are_silent() -> None:
    outcome = StepChecker().check(0, sides())
    assert outcome.findings == () and len(outcome.checks) == len(Side)
    assert (outcome.num_quantized, outcome.staleness, outcome.canary) == (len(NAMES), 0, None)


def test_a_weight_of_the_update_before_was_not_synced() -> None:
    now, before = sides(2), sides(1)
    finding = only(after_clean_steps(change(now, "loaded", {FIRST: stored(before, FIRST)})))
    assert (finding.name, finding.kind, finding.tensor) == ("tensor-not-synced", FindingKind.TRANSPORT, FIRST)
    assert finding.between == (Side.SENT, Side.LOADED)
    assert (finding.explains, finding.num_tensors, finding.step) == (1.0, 1, 2)


def test_all_weights_of_the_update_before_are_the_previous_step() -> None:
    now, before = sides(2), sides(1)
    assert before.sent is not None
    finding = only(after_clean_steps(change(now, "loaded", dict(before.sent))))
    assert (finding.name, finding.num_tensors) == ("previous-step", len(NAMES) + 1)


def test_a_layout_of_the_update_before_was_not_rebuilt() -> None:
    now, before = sides(2), sides(1)
    changed: dict[str, Shipped] = {name: stored(before, name) for name in NAMES}
    finding = only(after_clean_steps(change(now, "derived", changed)))
    assert (finding.name, finding.between) == ("layout-not-rebuilt", (Side.LOADED, Side.DERIVED))


def test_new_codes_under_old_scales_are_named() -> None:
    now, before = sides(2), sides(1)
    mixed = replace(stored(now, FIRST), scales=stored(before, FIRST).scales)
    finding = only(after_clean_steps(change(now, "loaded", {FIRST: mixed})))
    assert finding.name == "scales-not-refreshed" and finding.serve == "scales of the update before"


def test_another_rule_is_named_with_its_field() -> None:
    now = sides(2)
    floor = get_scheme("mxfp4-floor")
    changed: dict[str, Shipped] = {name: quantize_stack(now.trainer[name].source, floor) for name in NAMES}
    finding = only(after_clean_steps(change(now, "sent", changed)))
    assert (finding.name, finding.train, finding.serve) == ("another-rule", "mxfp4-even", "mxfp4-floor")
    assert finding.field == "scale.rounding" and finding.num_tensors == len(NAMES)


def test_fp32_masters_are_named() -> None:
    now = sides(2)
    changed: dict[str, Shipped] = {name: quantize_stack(now.trainer[name].master, EVEN) for name in NAMES}
    finding = only(after_clean_steps(change(now, "sent", changed)))
    assert (finding.name, finding.train, finding.serve) == ("fp32-masters", "bfloat16", "float32")


def test_experts_that_are_looked_for_elsewhere_are_a_placement() -> None:
    now = sides(2)
    order = torch.tensor([1, 0, 2, 3])
    changed: dict[str, Shipped] = {}
    for name in NAMES:
        held = restore(stored(now, name))
        changed[name] = store(replace(held, codes=held.codes[order], scales=held.scales[order]))
    finding = only(after_clean_steps(change(now, "derived", changed)))
    assert finding.name == "placement-change" and "0 holds 1" in finding.serve


@pytest.mark.parametrize("name", ["nibble-order", "swapped-gate-up", "transposed-scales", "skipped-layer", "stale"])
def test_structural_mismatches_of_the_exporter_are_named(name: str) -> None:
    now, before = sides(2), sides(1)
    parts = group_layers(NAMES)["layers.2.experts"]
    layer = {
        p: Weight(
            values=decode_shipped(stored(now, module)),
            quantized=restore(stored(now, module)),
            scheme=EVEN,
            master=now.trainer[module].source,
            earlier=(before.trainer[module].source,),
        )
        for p, module in parts.items()
    }
    served = get_mismatch(name).apply(layer)
    assert served is not None
    changed: dict[str, Shipped] = {
        parts[p]: w.values for p, w in served.items() if not torch.equal(w.values, layer[p].values)
    }
    finding = only(after_clean_steps(change(now, "sent", changed)))
    assert (finding.name, finding.explains, finding.latent) == (name, 1.0, False)
    assert finding.tensor in parts.values()


def test_a_single_flipped_code_is_unexplained_and_located() -> None:
    now = sides(2)
    finding = only(after_clean_steps(change(now, "sent", {FIRST: flip_code(stored(now, FIRST), 3, 5, 7)})))
    assert (finding.name, finding.tensor, finding.num_differing) == (UNEXPLAINED, FIRST, 1)
    assert (finding.expert, finding.coordinate) == (3, (5, 14))


def test_a_mismatch_is_reported_once_while_it_stays_and_again_when_it_returns() -> None:
    checker = StepChecker()
    found = []
    for step, is_wrong in enumerate([False, True, True, False, True]):
        now = sides(step)
        flipped: dict[str, Shipped] = {FIRST: flip_code(stored(now, FIRST), 0, 0, 0)}
        outcome = checker.check(step, change(now, "sent", flipped) if is_wrong else now)
        found.append(len(outcome.findings))
        assert bool(outcome.checks[-1].differing) == is_wrong
    assert found == [0, 1, 0, 0, 1]


def test_a_weight_that_joins_later_is_reported_too() -> None:
    checker = StepChecker()
    for step, wrong in enumerate([(FIRST,), (FIRST, NAMES[4])]):
        now = sides(step)
        changed: dict[str, Shipped] = {name: flip_code(stored(now, name), 0, 0, 0) for name in wrong}
        found = checker.check(step, change(now, "sent", changed)).findings
        assert only(found).tensor == wrong[-1]


def test_a_sample_finds_what_stays_within_its_delay() -> None:
    settings = CheckSettings(schedule=Schedule(every=2, period=EXPERTS))
    checker = StepChecker(settings)
    found = []
    for step in range(settings.schedule.longest_delay + 1):
        now = sides(step)
        wrong = change(now, "sent", {FIRST: flip_code(stored(now, FIRST), 3, 0, 0)})
        if checker.is_due(step):
            found += [finding.step for finding in checker.check(step, wrong).findings]
        else:
            checker.skip(step, now.trainer, now.sent or {})
    assert found == [6]


def test_what_was_left_behind_at_a_skipped_step_is_recognised() -> None:
    checker = StepChecker(CheckSettings(schedule=Schedule(every=2)))
    checker.check(0, sides(0))
    checker.skip(1, sides(1).trainer, sides(1).sent or {})
    finding = only(checker.check(2, change(sides(2), "loaded", {FIRST: stored(sides(1), FIRST)})).findings)
    assert finding.name == "tensor-not-synced" and finding.serve == "the update before"


def test_history_survives_masters_that_change_in_place() -> None:
    checker = StepChecker()
    live = sides(0).trainer[FIRST].master.clone()
    for step in range(2):
        now = sides(step)
        with torch.no_grad():
            live.copy_(now.trainer[FIRST].master)
        values = fake_quantize(live, EVEN)
        trained = replace(now.trainer[FIRST], values=values, source=live, master=live)
        now = change(replace(now, trainer={**now.trainer, FIRST: trained}), "sent", {FIRST: quantize_stack(live, EVEN)})
        if step == 1:
            now = change(now, "sent", {FIRST: quantize_stack(sides(0).trainer[FIRST].master, EVEN)})
        findings = checker.check(step, now).findings
    assert only(findings).name == "stale"


def test_a_rule_that_changes_no_value_is_latent() -> None:
    now = sides(0)
    labelled = replace(stored(now, FIRST), scheme=get_scheme("mxfp4-floor"))
    finding = only(StepChecker().check(0, change(now, "sent", {FIRST: labelled})).findings)
    assert (finding.name, finding.latent, finding.serve) == ("another-rule", True, "mxfp4-floor")


def test_masters_that_were_read_back_from_codes_are_latent() -> None:
    now = sides(1)
    trainer = {n: replace(w, source=w.values.to(w.source.dtype)) if w.is_stack else w for n, w in now.trainer.items()}
    checker = StepChecker()
    checker.check(0, sides(0))
    finding = only(checker.check(1, replace(now, trainer=trainer)).findings)
    assert (finding.name, finding.latent) == ("quantized-twice", True)
    # Who starts from codes does so on purpose.
    assert StepChecker().check(0, replace(now, trainer=trainer)).findings == ()


def test_versions_older_than_declared_are_reported() -> None:
    late = sides(2, step_version=0)
    finding = only(after_clean_steps(late))
    assert (finding.name, finding.serve) == ("stale-version", "2 updates behind")
    assert after_clean_steps(late, settings=CheckSettings(max_staleness=2)) == ()


def test_tensors_that_no_sync_brings_back_are_reported() -> None:
    lost = TransportCheck(num_randomised=12, not_restored=("layers.1.moe.experts.w2 0",))
    finding = only(StepChecker().check(0, sides(), transport=lost).findings)
    assert (finding.name, finding.kind, finding.tensor) == (
        "not-transported",
        FindingKind.TRANSPORT,
        "layers.1.moe.experts.w2 0",
    )


def test_a_lost_weight_is_reported_as_missing() -> None:
    now = sides(0)
    assert now.loaded is not None
    lost = replace(now, loaded={n: w for n, w in now.loaded.items() if n != FIRST})
    assert any(finding.name == "missing-tensor" for finding in StepChecker().check(0, lost).findings)


def test_steps_out_of_order_are_refused() -> None:
    checker = StepChecker()
    checker.check(3, sides())
    with pytest.raises(InputError, match="step 3 after step 3"):
        checker.check(3, sides())


def test_weights_of_another_model_are_refused() -> None:
    now = sides()
    strange = change(now, "sent", {"layers.9.experts.w1": stored(now, FIRST)})
    with pytest.raises(InputError, match=r"layers\.9\.experts\.w1"):
        StepChecker().check(0, strange)


def test_dense_weights_that_stay_behind_are_named_too() -> None:
    now, before = sides(2), sides(1)
    finding = only(after_clean_steps(change(now, "loaded", {DENSE: before.trainer[DENSE].source})))
    assert (finding.name, finding.tensor) == ("tensor-not-synced", DENSE)
