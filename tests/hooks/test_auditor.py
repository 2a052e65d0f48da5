"""The auditor is silent on equal bits, and says where, since when and by which rule others came about."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.manifest import DecodedTo, Manifest
from quantaudit.hooks.auditor import Alarm, StepAuditor, StepMismatchError
from quantaudit.hooks.exporter import export_shard
from quantaudit.hooks.findings import Fault, StepFinding, StepStatus
from quantaudit.hooks.held import HeldWeight
from quantaudit.hooks.merge import merge_shards
from quantaudit.hooks.sides import Quantize
from quantaudit.numerics import fake_quantize, get_scheme, pack, quantize
from tests.identity.test_layouts import weight

GATE, DOWN, DENSE = "layers.0.experts.gate", "layers.0.experts.down", "layers.0.self_attn.q_proj.weight"


def by(name: str) -> Quantize:
    return lambda matrix: fake_quantize(matrix, get_scheme(name))


EVEN, FLOOR = by("mxfp4-even"), by("mxfp4-floor")
RULES = {"mxfp4-floor": FLOOR, "mxfp4-ceil": by("mxfp4-ceil")}


def masters_of(step: int = 0, *, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Returns masters that differ from step to step."""

    def stack(seed: int) -> Tensor:
        return torch.stack([weight(8, 64, seed=seed + e, dtype=torch.float32) for e in range(4)])

    found = {GATE: stack(0), DOWN: stack(20), DENSE: weight(16, 32, seed=40, dtype=torch.float32)}
    return {name: (x * (1 + 0.1 * step)).to(dtype) for name, x in found.items()}


def served_by(rule: Quantize, masters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: rule(x) for name, x in masters.items()}


def manifest_of(values: Mapping[str, Tensor], *, experts: bool = True) -> Manifest:
    held = [HeldWeight(name=name, parts={"numbers": x}) for name, x in values.items()]
    return Manifest.from_json(merge_shards([export_shard(held)], experts=experts))


@pytest.mark.parametrize("remember", [0, 2])
@pytest.mark.parametrize("form", ["tensors", "manifest", "manifest without experts"])
def test_equal_bits_raise_no_alarm_at_any_step(form: str, remember: int) -> None:
    auditor = StepAuditor(quantize=EVEN, remember=remember)
    for step in range(1, 6):
        masters = masters_of(step)
        values = served_by(EVEN, masters)
        served = values if form == "tensors" else manifest_of(values, experts=form == "manifest")
        finding = auditor.on_step(step, masters, served)
        assert finding.status is StepStatus.EQUAL and finding.tensors == ()
        assert finding.metrics()["quantaudit/different"] == 0
        assert finding.num_checked == finding.num_matrices == (9 if form != "manifest without experts" else 3)
    assert auditor.first_bad_step is None


def test_packed_codes_of_the_engine_equal_the_fake_quantized_tensor() -> None:
    """Both sides by their own road: the engine packs, the trainer fake-quantizes."""
    masters = {name: x for name, x in masters_of(dtype=torch.bfloat16).items() if name != DENSE}
    scheme = get_scheme("mxfp4-even")
    held = []
    for name, x in masters.items():
        q = quantize(x, scheme)
        held.append(
            HeldWeight(name=name, parts={"codes": pack(q.codes, scheme.layout), "scales": q.scales}, coding="mxfp4")
        )
    served = Manifest.from_json(merge_shards([export_shard(held)]))
    assert StepAuditor(quantize=EVEN).on_step(1, masters, served).status is StepStatus.EQUAL
    with pytest.raises(StepMismatchError, match=r"layers\.0\.experts\.down"):
        StepAuditor(quantize=FLOOR).on_step(1, masters, served)


def test_minus_zero_is_zero_and_nan_is_nan() -> None:
    nan_a, nan_b = (torch.tensor([[bits, 0]], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, -1))
    pairs = [(torch.tensor([[0.0, 1.0]]), torch.tensor([[-0.0, 1.0]])), (nan_a, nan_b)]
    for remember, (a, b) in itertools.product((0, 2), pairs):
        assert StepAuditor(remember=remember).on_step(1, {DENSE: a}, {DENSE: b}).status is StepStatus.EQUAL
        with pytest.raises(StepMismatchError):
            StepAuditor(remember=remember).on_step(1, {DENSE: a}, {DENSE: torch.ones(1, 2)})


@pytest.mark.parametrize("remember", [0, 2])
@pytest.mark.parametrize("place", [(0, 0, 3), (3, 7, 63), (2, 5, 31)])
def test_one_flipped_bit_is_located(place: tuple[int, int, int], remember: int) -> None:
    values = served_by(EVEN, masters_of())
    other = {name: x.clone() for name, x in values.items()}
    other[GATE].view(torch.int32)[place] ^= 1
    with pytest.raises(StepMismatchError) as caught:
        StepAuditor(remember=remember).on_step(7, values, other)
    (found,) = caught.value.finding.tensors
    assert (found.name, found.fault, found.experts) == (GATE, Fault.VALUES, (place[0],))
    assert found.first is not None and found.first.coordinate == place and found.first.num_values == 1
    bits = [
        int(values[GATE].view(torch.int32)[place]) & 0xFFFFFFFF,
        int(other[GATE].view(torch.int32)[place]) & 0xFFFFFFFF,
    ]
    assert [int(found.first.trainer_bits, 16), int(found.first.served_bits, 16)] == bits
    assert str(list(place)) in str(caught.value) and GATE in str(caught.value) and "step 7" in str(caught.value)


@pytest.mark.gpu
def test_a_gpu_and_a_cpu_side_are_equal() -> None:
    values = served_by(EVEN, masters_of())
    on_gpu = {name: x.cuda() for name, x in values.items()}
    auditor = StepAuditor(alarm=Alarm.LOG)
    assert auditor.on_step(1, on_gpu, values).status is StepStatus.EQUAL
    assert auditor.on_step(2, on_gpu, manifest_of(on_gpu)).status is StepStatus.EQUAL
    assert auditor.on_step(3, on_gpu, served_by(FLOOR, masters_of())).tensors[0].first is not None


@pytest.mark.parametrize("is_manifest", [False, True])
@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (FLOOR, "mxfp4-floor of the masters"),
        (by("mxfp4-ceil"), "mxfp4-ceil of the masters"),
        (lambda x: x, "the masters, not quantized"),
        (lambda x: x.bfloat16(), "the masters in bf16, not quantized"),
        (by("int4-g32-div7"), ""),
    ],
)
def test_the_rule_of_the_engine_is_named(rule: Quantize, words: str, *, is_manifest: bool) -> None:
    masters = masters_of()
    values = served_by(EVEN, masters) | {GATE: rule(masters[GATE])}
    auditor = StepAuditor(quantize=EVEN, candidates=RULES, alarm=Alarm.LOG)
    finding = auditor.on_step(3, masters, manifest_of(values) if is_manifest else values)
    (found,) = finding.tensors
    assert (found.name, found.explanation) == (GATE, words)
    assert set(found.experts) == {0, 1, 2, 3} and (found.first is None) == is_manifest
    assert auditor.first_bad_step == 3


def test_masters_explain_a_state_that_is_fake_quantized_already() -> None:
    masters = masters_of()
    auditor = StepAuditor(candidates=RULES, alarm=Alarm.LOG)
    finding = auditor.on_step(1, served_by(EVEN, masters), served_by(FLOOR, masters), masters=masters)
    assert {found.explanation for found in finding.tensors} == {"mxfp4-floor of the masters"}


@pytest.mark.parametrize("rotate", [1, 3])
def test_weights_of_an_earlier_step_are_called_so(rotate: int) -> None:
    auditor = StepAuditor(quantize=EVEN, rotate=rotate, alarm=Alarm.LOG)
    for step in range(1, 7):
        auditor.on_step(step, masters_of(step), served_by(EVEN, masters_of(step)))
    late = auditor.on_step(7, masters_of(7), served_by(EVEN, masters_of(7 - rotate)))
    assert {found.explanation for found in late.tensors} == {f"the values of step {7 - rotate}"}
    forgotten = auditor.on_step(8, masters_of(8), served_by(EVEN, masters_of(-5)))
    assert {found.explanation for found in forgotten.tensors} == {""}


def test_a_tensor_that_is_not_served_is_named_and_more_than_needed_is_not() -> None:
    values = served_by(EVEN, masters_of())
    less = {name: x for name, x in values.items() if name != DOWN} | {"lm_head.weight": torch.ones(2, 2)}
    finding = StepAuditor(alarm=Alarm.LOG).on_step(1, values, less)
    (found,) = finding.tensors
    assert (found.name, found.fault, finding.num_different) == (DOWN, Fault.NOT_SERVED, 1)


def test_a_sharded_trainer_gives_a_manifest_too() -> None:
    masters = masters_of()
    trainer = manifest_of(served_by(EVEN, masters))
    auditor = StepAuditor(candidates=RULES, alarm=Alarm.LOG)
    for step, served in ((1, served_by(EVEN, masters)), (2, manifest_of(served_by(EVEN, masters)))):
        assert auditor.on_step(step, trainer, served).status is StepStatus.EQUAL
    finding = auditor.on_step(3, trainer, manifest_of(served_by(FLOOR, masters)), masters=masters)
    assert {found.explanation for found in finding.tensors} == {"mxfp4-floor of the masters"}


def test_an_alarm_can_be_a_function_or_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    told: list[StepFinding] = []
    good, bad = (served_by(rule, masters_of()) for rule in (EVEN, FLOOR))
    auditor = StepAuditor(alarm=told.append)
    assert auditor.on_step(1, good, good).status is StepStatus.EQUAL and told == []
    assert [auditor.on_step(2, good, bad)] == told and auditor.first_bad_step == 2
    with caplog.at_level(logging.ERROR, logger="quantaudit.hooks"):
        StepAuditor(alarm=Alarm.LOG).on_step(1, good, bad)
    assert GATE in caplog.text and "different" in caplog.text


def first_alarm(auditor: StepAuditor, *, since: int, expert: int) -> int:
    """Returns the step at which a difference in one expert, there since a step, is found."""
    good = served_by(EVEN, masters_of())
    bad = good | {DOWN: good[DOWN].clone()}
    bad[DOWN][expert, 1, 1] += 1
    for step in range(1, 100):
        try:
            auditor.on_step(step, good, bad if step >= since else good)
        except StepMismatchError:
            return step
    raise AssertionError("never found")


@pytest.mark.parametrize(("every", "rotate"), [(1, 1), (4, 1), (1, 4), (2, 3)])
def test_a_difference_that_stays_is_found_within_the_declared_delay(every: int, rotate: int) -> None:
    delays = set()
    for since in range(1, 2 * every * rotate + 1):
        for expert in range(4):
            auditor = StepAuditor(every=every, rotate=rotate)
            delays.add(first_alarm(auditor, since=since, expert=expert) - since)
    assert min(delays) == 0 and max(delays) == auditor.delay_steps == every * rotate - 1


def test_a_rotating_sample_looks_at_every_matrix_once_in_a_turn() -> None:
    values = served_by(EVEN, masters_of())
    auditor = StepAuditor(rotate=4)
    counts = [auditor.on_step(step, values, values) for step in range(1, 5)]
    assert [c.num_checked for c in counts] == [3, 2, 2, 2] and sum(
        c.metrics()["quantaudit/coverage"] for c in counts
    ) == 1


def test_steps_that_are_not_due_or_not_served_are_not_called_equal() -> None:
    values = served_by(EVEN, masters_of())
    auditor = StepAuditor(every=3)
    served = [None, values, values, values, values]
    found = [auditor.on_step(step, values, s).status for step, s in enumerate(served, start=1)]
    skip, equal = StepStatus.NOT_CHECKED, StepStatus.EQUAL
    assert found == [skip, equal, skip, skip, equal], "a step that was not served does not count as a check"
    assert "quantaudit/different" not in auditor.on_step(6, values, None).metrics()


def test_steps_out_of_order_are_refused() -> None:
    values = served_by(EVEN, masters_of())
    auditor = StepAuditor()
    auditor.on_step(5, values, values)
    for step in (5, 4):
        with pytest.raises(InputError, match=f"step {step} after step 5"):
            auditor.on_step(step, values, values)


def test_the_manifest_of_another_model_is_refused() -> None:
    values = served_by(EVEN, masters_of())
    with pytest.raises(InputError, match=r"layers\.9.*expected the model of the trainer"):
        StepAuditor().on_step(1, values, manifest_of({"layers.9.mlp.up_proj.weight": torch.ones(2, 2)}))
    with pytest.raises(InputError, match=r"experts\.gate of shape \[3, 8, 64\].*\[4, 8, 64\]"):
        StepAuditor().on_step(1, values, manifest_of(values | {GATE: values[GATE][:3]}))
    auditor = StepAuditor()
    with pytest.raises(InputError, match="expected the model"):
        auditor.on_step(1, values, {})
    assert auditor.on_step(1, values, values).status is StepStatus.EQUAL, "a wrong input does not use up its step"


def test_the_manifest_of_another_scheme_is_refused() -> None:
    values, scheme, other = served_by(EVEN, masters_of()), get_scheme("mxfp4-even"), get_scheme("mxfp4-floor")
    made = manifest_of(values)

    def declared(of: str) -> Manifest:
        found = get_scheme(of)
        return made.model_copy(update={"scheme": of, "arithmetic_digest": found.arithmetic_digest})

    auditor = StepAuditor(scheme=scheme)
    assert auditor.on_step(1, values, declared("mxfp4-even")).status is StepStatus.EQUAL
    with pytest.raises(InputError, match="mxfp4-even and mxfp4-floor"):
        auditor.on_step(2, values, declared(other.name))
    with pytest.raises(InputError, match="mxfp4-even and mxfp4-floor"):
        StepAuditor().on_step(1, declared("mxfp4-even"), declared("mxfp4-floor"))
    with pytest.raises(InputError, match="two dtypes"):
        StepAuditor().on_step(1, made, made.model_copy(update={"decoded_to": DecodedTo.FLOAT32}))


def test_a_trainer_that_loses_a_tensor_is_refused() -> None:
    values = served_by(EVEN, masters_of())
    auditor = StepAuditor()
    auditor.on_step(1, values, values)
    with pytest.raises(InputError, match=r"another layers\.0\.experts\.down than at its first step"):
        auditor.on_step(2, {name: x for name, x in values.items() if name != DOWN}, values)


def test_what_cannot_be_compared_is_refused() -> None:
    codes = {DENSE: torch.ones(2, 2, dtype=torch.int8)}
    with pytest.raises(InputError, match="torch.int8.*decode it first"):
        StepAuditor().on_step(1, codes, codes)
    values = served_by(EVEN, masters_of())
    with pytest.raises(InputError, match="rotate=10 for 9 matrices"):
        StepAuditor(rotate=10).on_step(1, values, values)
    for every, rotate, remember in ((0, 1, 0), (1, 0, 0), (1, 1, -1)):
        with pytest.raises(InputError, match="remember"):
            StepAuditor(every=every, rotate=rotate, remember=remember)
