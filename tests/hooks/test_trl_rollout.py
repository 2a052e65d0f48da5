"""A real GRPO run of TRL that generates with a served copy: silent while it is equal, stopped when it is not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TypeAlias

import pytest
import torch
from torch import nn

from quantaudit.core.errors import InputError
from quantaudit.core.scheme import Scheme
from quantaudit.hooks.auditor import StepAuditor, StepMismatchError
from quantaudit.hooks.experts import read_experts
from quantaudit.hooks.findings import StepStatus
from quantaudit.hooks.sides import State
from quantaudit.hooks.trl_rollout import audit_rollouts
from quantaudit.numerics import fake_quantize, get_scheme

pytest.importorskip("trl", reason="trl is not installed, so its hook was not checked: pip install 'quantaudit[trl]'")
from trl.trainer.grpo_config import GRPOConfig  # noqa: E402
from trl.trainer.grpo_trainer import GRPOTrainer  # noqa: E402

from tests.hooks.tiny_moe import ServedCopy, fake_quantize_experts, tiny_model, tiny_tokenizer  # noqa: E402

EVEN, FLOOR = get_scheme("mxfp4-even"), get_scheme("mxfp4-floor")
Dataset = pytest.importorskip("datasets").Dataset  # it has no types
NUM_STEPS, NUM_TOKENS = 3, 6
# It warns of deprecated names of transformers that it uses.
quiet = pytest.mark.filterwarnings("ignore")
# One run of each kind is in the short suite.
FORMS = [pytest.param("tensors", marks=pytest.mark.slow), "manifest"]


Reward: TypeAlias = "Callable[..., list[float | None]]"


def count_letters(completions: list[str], **columns: object) -> list[float | None]:
    """Rewards different letters."""
    return [float(len(set(completion))) for completion in completions]


class Run:
    """A model that trains under one scheme, and an engine that generates the rollouts under another or the same."""

    def __init__(self, scheme: Scheme) -> None:
        self.tokenizer = tiny_tokenizer()
        self.model: nn.Module = tiny_model(self.tokenizer)
        self.served = ServedCopy(copy.deepcopy(self.model), scheme)
        fake_quantize_experts(self.model, EVEN)
        self.num_rollouts = 0

    @torch.no_grad()
    def generate(self, prompts: list[str], trainer: object) -> dict[str, object]:
        """Syncs the engine, and generates with it."""
        self.served.sync(self.model)
        self.num_rollouts += 1
        batch = self.tokenizer(prompts, return_tensors="pt", padding=True)
        made = self.served.model.generate(  # type: ignore[operator]
            **batch, max_new_tokens=NUM_TOKENS, do_sample=True, return_dict_in_generate=True, output_logits=True
        )
        completions = made.sequences[:, batch["input_ids"].shape[1] :]
        scores = torch.stack(made.logits, 1).log_softmax(-1).gather(-1, completions.unsqueeze(-1)).squeeze(-1)
        return {
            "prompt_ids": [self.tokenizer(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": completions.tolist(),
            "logprobs": scores.tolist(),
        }

    def make_trainer(self, folder: Path, reward: Reward) -> GRPOTrainer:
        """Returns a trainer, not started."""
        arguments = GRPOConfig(
            output_dir=str(folder),
            max_steps=NUM_STEPS,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=NUM_TOKENS,
            learning_rate=0.02,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            seed=1,
        )
        return GRPOTrainer(
            model=self.model,
            reward_funcs=reward,
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": f"say {i}"} for i in range(8)]),
            processing_class=self.tokenizer,
            rollout_func=self.generate,
        )


def audited(run: Run, auditor: StepAuditor, served: Callable[[int], State | None]) -> Reward:
    return audit_rollouts(count_letters, auditor, model=run.model, served=served)


@quiet
@pytest.mark.parametrize("form", FORMS)
def test_a_clean_run_raises_no_alarm_and_logs_beside_the_reward(form: str, tmp_path: Path) -> None:
    run, auditor = Run(EVEN), StepAuditor(scheme=EVEN)
    before = {name: x.clone() for name, x in read_experts(run.model).items()}

    def served(step: int) -> State:
        return read_experts(run.served.model) if form == "tensors" else run.served.export_manifest()

    trainer = run.make_trainer(tmp_path, audited(run, auditor, served))
    trainer.train()
    rows = [row for row in trainer.state.log_history if "quantaudit/different" in row]
    assert [(row["step"], row["quantaudit/different"]) for row in rows] == [(s, 0.0) for s in range(1, NUM_STEPS + 1)]
    assert all("reward" in row and row["quantaudit/checked"] == 2 * 3 * 4 for row in rows)
    assert run.num_rollouts == NUM_STEPS and auditor.last_step == NUM_STEPS - 1 and auditor.first_bad_step is None
    assert any(not torch.equal(x, before[name]) for name, x in read_experts(run.model).items())


@quiet
@pytest.mark.parametrize("form", FORMS)
def test_a_copy_under_another_rule_raises_the_alarm_before_anything_is_learned(form: str, tmp_path: Path) -> None:
    run = Run(FLOOR)
    auditor = StepAuditor(candidates={"mxfp4-floor": lambda x: fake_quantize(x, FLOOR)})
    before = {name: x.clone() for name, x in read_experts(run.model).items()}

    def served(step: int) -> State:
        return read_experts(run.served.model) if form == "tensors" else run.served.export_manifest()

    trainer = run.make_trainer(tmp_path, audited(run, auditor, served))
    with pytest.raises(StepMismatchError, match=r"layers\.0\.experts\.gate: .*mxfp4-floor of the masters"):
        trainer.train()
    assert auditor.first_bad_step == 0 and run.num_rollouts == 1
    assert all(torch.equal(x, before[name]) for name, x in read_experts(run.model).items())


@quiet
def test_an_engine_that_misses_one_sync_is_found_at_that_step(tmp_path: Path) -> None:
    run, auditor = Run(EVEN), StepAuditor()
    synced = run.served.sync

    def miss_the_second(trained: nn.Module) -> None:
        if run.num_rollouts != 1:
            synced(trained)

    run.served.sync = miss_the_second  # type: ignore[method-assign]
    trainer = run.make_trainer(tmp_path, audited(run, auditor, lambda step: run.served.export_manifest()))
    with pytest.raises(StepMismatchError, match="the values of step 0") as caught:
        trainer.train()
    assert caught.value.finding.step == 1


def test_one_step_is_audited_once_and_evaluations_are_not() -> None:
    model = Run(EVEN).model
    seen: list[int] = []

    def served(step: int) -> State | None:
        seen.append(step)
        return None

    auditor = StepAuditor()
    reward = audit_rollouts(count_letters, auditor, model=model, served=served)
    metrics: dict[str, float] = {}
    for step, training in ((0, True), (0, True), (1, False), (2, True)):
        model.train(training)
        state = SimpleNamespace(global_step=step)
        assert reward(completions=["aab", ""], trainer_state=state, log_metric=metrics.__setitem__) == [2.0, 0.0]
    assert seen == [0, 2]
    assert metrics["quantaudit/checked"] == 0 and "quantaudit/different" not in metrics
    assert auditor.on_step(3, read_experts(model), None).status is StepStatus.NOT_CHECKED


def test_the_reward_keeps_its_name_and_must_be_a_plain_function() -> None:
    async def later(**columns: object) -> list[float]:
        return []

    named = audit_rollouts(count_letters, StepAuditor(), model=nn.Linear(1, 1), served=lambda step: None)
    assert getattr(named, "__name__", None) == "count_letters"
    for reward in (nn.Linear(1, 1), later, "a-model"):
        with pytest.raises(InputError, match="plain function"):
            audit_rollouts(reward, StepAuditor(), model=nn.Linear(1, 1), served=lambda step: None)  # type: ignore[type-var]


@pytest.fixture(autouse=True)
def be_quiet_about_rollout_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
