"""The step auditor: are the served weights those that the trainer computed with, bit for bit, at every step?

    auditor = StepAuditor(quantize=lambda w: fake_quantize(w, scheme))
    auditor.on_step(step, masters, served)      # raises `StepMismatchError` at the first step at which bits part

Either side is a mapping of tensors or a manifest. Leaves of matrices are compared, so -0 equals +0 and packing does not
count. Where both sides are tensors, the first differing value is located; where something known has the served bits
(`explanations`), it is named.

Checking every n-th step, or in turn each m-th of the matrices, divides the cost. A difference that stays is then found
up to `delay_steps` = n * m - 1 steps late, and one that heals before its turn is not found at all.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum

import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.manifest import Manifest
from quantaudit.core.scheme import Scheme
from quantaudit.hooks.explanations import Evidence, PastStep, explain
from quantaudit.hooks.findings import Fault, StepFinding, StepStatus, TensorFinding
from quantaudit.hooks.sides import Quantize, Side, State, check_declared, open_state
from quantaudit.hooks.step_compare import compare_sides, describe

_log = logging.getLogger("quantaudit.hooks")


class Alarm(StrEnum):
    """What happens when bits part."""

    RAISE = "raise"
    LOG = "log"


class StepMismatchError(RuntimeError):
    """Says that the served weights are not those that were trained.

    Args:
        finding: What was found.
    """

    def __init__(self, finding: StepFinding) -> None:
        self.finding = finding
        super().__init__(str(finding))


class StepAuditor:
    """Audits the steps of one run.

    Args:
        quantize: From a master matrix, [O, I], to the values the trainer computes with; `None` if the trainer's state
            holds those.
        scheme: That of the run; a manifest that declares another is refused.
        candidates: Rules by name, tried on the masters to explain what is served.
        alarm: What happens when bits part: raise, log, or a function that is told.
        every: Steps from one check to the next.
        rotate: Checks until every matrix had its turn.
        remember: Earlier checks whose leaves are kept, to recognise stale weights; none is faster where both sides are
            tensors.

    Attributes:
        first_bad_step: The first step at which bits parted; `None` so far.
        last_step: The last step it was told; `None` so far.
    """

    def __init__(
        self,
        *,
        quantize: Quantize | None = None,
        scheme: Scheme | None = None,
        candidates: Mapping[str, Quantize] | None = None,
        alarm: Alarm | Callable[[StepFinding], None] = Alarm.RAISE,
        every: int = 1,
        rotate: int = 1,
        remember: int = 4,
    ) -> None:
        if min(every, rotate) < 1 or remember < 0:
            raise InputError(
                f"every={every}, rotate={rotate}, remember={remember}", expected="1 or more, 0 or more", fix="raise it"
            )
        self.first_bad_step: int | None = None
        self._quantize = quantize
        self._scheme = scheme
        self._candidates = dict(candidates or {})
        self._alarm = alarm
        self._every, self._rotate, self._turn = every, rotate, 0
        self._past: deque[PastStep] = deque(maxlen=remember * rotate)
        self.last_step: int | None = None
        self._last_check: int | None = None
        self._shapes: dict[str, tuple[int, ...]] | None = None

    @property
    def delay_steps(self) -> int:
        """Returns the steps after which a difference that stays is found at the latest."""
        return self._every * self._rotate - 1

    def is_due(self, step: int) -> bool:
        """Returns whether `on_step` would check this step: states need not be gathered otherwise."""
        return self._last_check is None or step - self._last_check >= self._every

    @torch.no_grad()
    def on_step(
        self,
        step: int,
        trainer_state: State,
        served: State | None,
        *,
        masters: Mapping[str, Tensor] | None = None,
    ) -> StepFinding:
        """Audits a step.

        Args:
            step: Number of the step; they rise.
            trainer_state: What the trainer computes with, or its masters if there is a `quantize`.
            served: What the engine holds after it was given the weights of this step; `None` if it was not given any,
                which is not checked and not counted as equal.
            masters: Unquantized weights, for explanations; the trainer's state itself if there is a `quantize`.

        Raises:
            InputError: If steps fall, or a state is that of another model or scheme.
            StepMismatchError: If bits differ, and the alarm is to raise.
        """
        start = time.perf_counter()
        self._check_order(step)
        if served is None or not self.is_due(step):
            self.last_step = step
            return StepFinding(step=step, status=StepStatus.NOT_CHECKED)
        check_declared(trainer_state, served, self._scheme)
        trainer, engine = open_state(trainer_state, self._quantize), open_state(served)
        self._check_shapes(trainer)
        if masters is None and self._quantize is not None and not isinstance(trainer_state, Manifest):
            masters = trainer_state
        finding = replace(self._compare(step, trainer, engine, masters), seconds=time.perf_counter() - start)
        self.last_step = self._last_check = step
        self._turn = (self._turn + 1) % self._rotate
        if finding.status is StepStatus.DIFFERENT:
            self._raise_alarm(finding)
        return finding

    def _compare(self, step: int, trainer: Side, engine: Side, masters: Mapping[str, Tensor] | None) -> StepFinding:
        compared = compare_sides(
            trainer, engine, turn=self._turn, rotate=self._rotate, keep_leaves=bool(self._past.maxlen)
        )
        found = [TensorFinding(name=name, fault=Fault.NOT_SERVED) for name in compared.not_served]
        for name, bad in compared.different.items():
            evidence = Evidence(bad, self._past, masters, self._candidates)
            found.append(describe(name, bad, trainer, engine, explain(evidence)))
        self._past.append(PastStep(step, compared.leaves))
        return StepFinding(
            step=step,
            status=StepStatus.DIFFERENT if found else StepStatus.EQUAL,
            num_checked=compared.num_checked,
            num_matrices=compared.num_units,
            num_different=len(compared.not_served) + sum(map(len, compared.different.values())),
            tensors=tuple(sorted(found, key=lambda tensor: tensor.name)),
        )

    def _check_order(self, step: int) -> None:
        if self.last_step is not None and step <= self.last_step:
            raise InputError(
                f"step {step} after step {self.last_step}",
                expected="steps that rise",
                fix="use one auditor for one run, and a new one after a restart from an earlier step",
            )

    def _check_shapes(self, trainer: Side) -> None:
        """Checks that the trainer's state is that of the first step: a tensor that got lost would go unseen."""
        shapes = {name: trainer.shape(name) for name in trainer.names}
        self._shapes = shapes if self._shapes is None else self._shapes
        if shapes != self._shapes:
            name = min(n for n in shapes.keys() | self._shapes.keys() if shapes.get(n) != self._shapes.get(n))
            raise InputError(
                f"a trainer with another {name} than at its first step",
                expected="the same tensors at every step",
                fix="use one auditor for one model",
            )

    def _raise_alarm(self, finding: StepFinding) -> None:
        self.first_bad_step = finding.step if self.first_bad_step is None else self.first_bad_step
        if self._alarm is Alarm.RAISE:
            raise StepMismatchError(finding)
        if self._alarm is Alarm.LOG:
            _log.error("%s", finding)
        else:
            self._alarm(finding)
