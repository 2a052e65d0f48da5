"""A real run of transformers' `Trainer`: silent while train and serve are equal, stopped when they are not."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from quantaudit.core.scheme import Scheme
from quantaudit.hooks.auditor import StepAuditor, StepMismatchError
from quantaudit.hooks.experts import read_experts, read_masters
from quantaudit.hooks.exporter import export_shard
from quantaudit.hooks.findings import StepFinding
from quantaudit.hooks.held import HeldWeight, hold
from quantaudit.hooks.sides import State
from quantaudit.numerics import fake_quantize, get_scheme

for library in ("transformers", "accelerate"):
    pytest.importorskip(library, reason=f"{library} is not installed, so the hook of transformers was not checked")
from transformers import Trainer, TrainingArguments  # noqa: E402

from quantaudit.hooks.huggingface import audit_trainer  # noqa: E402
from tests.hooks.tiny_moe import ServedCopy, fake_quantize_experts, tiny_model, tiny_tokenizer  # noqa: E402

EVEN, FLOOR = get_scheme("mxfp4-even"), get_scheme("mxfp4-floor")
NUM_STEPS = 4
# It warns of what it finds installed.
quiet = pytest.mark.filterwarnings("ignore")
# One run of each kind is in the short suite.
FORMS = [pytest.param("tensors", marks=pytest.mark.slow), "manifest"]


def test_stacks_of_transformers_are_split_and_named() -> None:
    model = tiny_model(tiny_tokenizer())
    found = read_experts(model)
    assert sorted(found) == [f"layers.{i}.experts.{role}" for i in range(2) for role in ("down", "gate", "up")]
    stack_EOI = model.model.layers[1].mlp.experts.gate_up_proj
    assert torch.equal(found["layers.1.experts.gate"], stack_EOI[:, :32])
    assert torch.equal(found["layers.1.experts.up"], stack_EOI[:, 32:])
    by_state = {entry.name: entry.values for entry in export_shard(hold(dict(model.state_dict()))).entries}
    for name, x in found.items():
        assert by_state[name] == export_shard([HeldWeight(name=name, parts={"numbers": x})]).entries[0].values


def test_what_is_read_is_fake_quantized_and_the_masters_lie_below() -> None:
    model = tiny_model(tiny_tokenizer())
    before = {name: x.detach().clone() for name, x in read_experts(model).items()}
    fake_quantize_experts(model, EVEN)
    values, masters = read_experts(model), read_masters(model)
    assert values.keys() == masters.keys() == before.keys()
    for name, x in before.items():
        assert torch.equal(masters[name], x)
        assert torch.equal(values[name], fake_quantize(x, EVEN)) and not torch.equal(values[name], x)


def make_trainer(folder: Path, model: nn.Module, *, logging_steps: int = 1) -> Trainer:
    """Returns a trainer on byte sequences, not started."""
    tokenizer = tiny_tokenizer()
    rows = [tokenizer(f"{i} and {i} is {2 * i}.".ljust(20))["input_ids"] for i in range(16)]
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=NUM_STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=0.02,
        logging_steps=logging_steps,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
    )
    dataset = [{"input_ids": row, "labels": row} for row in rows]
    return Trainer(model=model, args=arguments, train_dataset=dataset)


def trained_and_served(scheme: Scheme) -> tuple[nn.Module, ServedCopy]:
    """Returns a model that trains under one scheme, and an engine that quantizes under another or the same."""
    model = tiny_model(tiny_tokenizer())
    served = ServedCopy(copy.deepcopy(model), scheme)
    fake_quantize_experts(model, EVEN)
    return model, served


def rows_with(trainer: Trainer, key: str) -> list[dict[str, float]]:
    return [row for row in trainer.state.log_history if key in row]


@quiet
@pytest.mark.parametrize("form", FORMS)
def test_a_clean_run_raises_no_alarm_and_logs_every_step(form: str, tmp_path: Path) -> None:
    model, served = trained_and_served(EVEN)
    before = {name: x.clone() for name, x in read_experts(model).items()}

    def sync(step: int) -> State:
        served.sync(model)
        return read_experts(served.model) if form == "tensors" else served.export_manifest()

    trainer = make_trainer(tmp_path, model)
    auditor = StepAuditor(scheme=EVEN)
    audit_trainer(trainer, auditor, sync)
    trainer.train()
    rows = rows_with(trainer, "quantaudit/different")
    assert [(row["step"], row["quantaudit/different"]) for row in rows] == [(s, 0) for s in range(1, NUM_STEPS + 1)]
    assert {row["quantaudit/checked"] for row in rows} == {2 * 3 * 4}
    assert auditor.first_bad_step is None
    assert all(not torch.equal(x, before[name]) for name, x in read_experts(model).items())


@quiet
@pytest.mark.parametrize(("logging_steps", "num_rows"), [pytest.param(1, 4, marks=pytest.mark.slow), (2, 2)])
def test_rows_of_the_trainer_stay_as_they_are(logging_steps: int, num_rows: int, tmp_path: Path) -> None:
    model, served = trained_and_served(EVEN)

    def sync(step: int) -> State:
        served.sync(model)
        return read_experts(served.model)

    trainer = make_trainer(tmp_path, model, logging_steps=logging_steps)
    audit_trainer(trainer, StepAuditor(), sync)
    trainer.train()
    assert len(rows_with(trainer, "loss")) == num_rows
    assert len(rows_with(trainer, "quantaudit/checked")) == NUM_STEPS


@quiet
@pytest.mark.parametrize("form", FORMS)
def test_a_copy_served_under_another_rule_stops_the_run_and_is_named(form: str, tmp_path: Path) -> None:
    model, served = trained_and_served(FLOOR)

    def sync(step: int) -> State:
        served.sync(model)
        return read_experts(served.model) if form == "tensors" else served.export_manifest()

    trainer = make_trainer(tmp_path, model)
    auditor = StepAuditor(candidates={"mxfp4-floor": lambda x: fake_quantize(x, FLOOR)})
    audit_trainer(trainer, auditor, sync)
    with pytest.raises(StepMismatchError, match=r"layers\.0\.experts\.gate: .*mxfp4-floor of the masters") as caught:
        trainer.train()
    assert trainer.state.global_step == auditor.first_bad_step == caught.value.finding.step == 1
    (row,) = rows_with(trainer, "quantaudit/different")
    assert row["quantaudit/different"] == caught.value.finding.num_different > 0


@quiet
def test_an_engine_that_is_not_synced_any_more_is_stale_since_that_step(tmp_path: Path) -> None:
    model, served = trained_and_served(EVEN)

    def sync(step: int) -> State:
        if step <= 2:
            served.sync(model)
        return served.export_manifest()

    trainer = make_trainer(tmp_path, model)
    told: list[StepFinding] = []
    auditor = StepAuditor(alarm=told.append)
    audit_trainer(trainer, auditor, sync)
    trainer.train()
    assert [finding.step for finding in told] == [3, 4] and auditor.first_bad_step == 3
    assert {tensor.explanation for finding in told for tensor in finding.tensors} == {"the values of step 2"}


@quiet
def test_steps_that_are_not_due_cost_no_sync(tmp_path: Path) -> None:
    model, served = trained_and_served(EVEN)
    synced: list[int] = []

    def sync(step: int) -> State:
        synced.append(step)
        served.sync(model)
        return read_experts(served.model)

    trainer = make_trainer(tmp_path, model)
    audit_trainer(trainer, StepAuditor(every=3), sync)
    trainer.train()
    assert synced == [1, 4]
