"""The step audit as a callback of transformers' `Trainer`; its numbers go to the trainer's own logger.

    audit_trainer(trainer, StepAuditor(), served=engine.sync)

After every optimizer step `served(step)` gives what the engine holds of that step's weights: tensors, or the manifest
that its workers exported. `Trainer.log` marks the step as logged, which would swallow the trainer's own row; the mark
is put back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from quantaudit.hooks.auditor import StepAuditor, StepMismatchError
from quantaudit.hooks.experts import read_experts, read_masters
from quantaudit.hooks.findings import StepFinding
from quantaudit.hooks.sides import State

Served = Callable[[int], "State | None"]
Read = Callable[[nn.Module], Mapping[str, Tensor]]


class AuditCallback(TrainerCallback):
    """Audits every optimizer step.

    Args:
        trainer: Its logger is told.
        auditor: Compares.
        served: From the step to what the engine holds; `None` where it was not given weights.
        read: From the model to what its forward pass computes with.
        read_masters: From the model to unquantized weights, for explanations.
    """

    def __init__(
        self, trainer: Trainer, auditor: StepAuditor, served: Served, *, read: Read, read_masters: Read
    ) -> None:
        self._trainer = trainer
        self._auditor = auditor
        self._served = served
        self._read, self._read_masters = read, read_masters

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Audits the weights of the step that ended.

        Raises:
            StepMismatchError: If bits differ, and the alarm is to raise; the trainer's log has the numbers by then.
        """
        model = kwargs["model"]
        assert isinstance(model, nn.Module)
        if not self._auditor.is_due(state.global_step):
            return
        try:
            finding = self._auditor.on_step(
                state.global_step,
                self._read(model),
                self._served(state.global_step),
                masters=self._read_masters(model),
            )
        except StepMismatchError as error:
            self._log(error.finding, control)
            raise
        self._log(finding, control)

    def _log(self, finding: StepFinding, control: TrainerControl) -> None:
        should_log = control.should_log
        self._trainer.log(finding.metrics())
        control.should_log = should_log


def audit_trainer(
    trainer: Trainer,
    auditor: StepAuditor,
    served: Served,
    *,
    read: Read = read_experts,
    read_masters: Read = read_masters,
) -> AuditCallback:
    """Adds the audit to a trainer.

    Args:
        trainer: Any `Trainer` of transformers whose model is whole in this process.
        auditor: Compares.
        served: From the step to what the engine holds; `None` where it was not given weights.
        read: From the model to what its forward pass computes with.
        read_masters: From the model to unquantized weights, for explanations.
    """
    callback = AuditCallback(trainer, auditor, served, read=read, read_masters=read_masters)
    trainer.add_callback(callback)
    return callback
