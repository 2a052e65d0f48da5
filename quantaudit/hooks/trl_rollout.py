"""The step audit inside TRL's GRPO: rollouts are audited when they are rewarded, by TRL's own reward interface.

    audited = audit_rollouts(reward, StepAuditor(), model=model, served=engine.manifest)
    GRPOTrainer(model=model, reward_funcs=audited, ...)

TRL rewards a batch of rollouts before the next optimizer step, so that the model still has the weights that the engine
was to generate with, whichever engine it is: vLLM, a rollout function, or the model itself. A reward function is told
the trainer's state and given `log_metric`, whose numbers TRL averages and logs beside its own. Nothing of TRL is
imported, subclassed or replaced.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar, cast

from torch import Tensor, nn

from quantaudit.core.errors import InputError
from quantaudit.hooks.auditor import StepAuditor
from quantaudit.hooks.experts import read_experts, read_masters
from quantaudit.hooks.sides import State

Reward = TypeVar("Reward", bound=Callable[..., Sequence["float | None"]])
Read: TypeAlias = Callable[[nn.Module], Mapping[str, Tensor]]


class _HasStep(Protocol):
    """What is needed of the trainer's state."""

    global_step: int


def audit_rollouts(
    reward: Reward,
    auditor: StepAuditor,
    *,
    model: nn.Module,
    served: Callable[[int], State | None],
    read: Read = read_experts,
    read_masters: Read = read_masters,
) -> Reward:
    """Returns the reward function, which audits before it rewards, once for every optimizer step with rollouts.

    Args:
        reward: A plain reward function, as TRL calls it; its rewards stay as they are.
        auditor: Compares; a raised `StepMismatchError` ends the training before the rollouts are learned from.
        model: What is trained. Evaluations are not audited.
        served: From the step to what the engine holds; `None` where it was not given weights.
        read: From the model to what its forward pass computes with.
        read_masters: From the model to unquantized weights, for explanations.

    Raises:
        InputError: If the reward is a model or asynchronous.
    """
    if isinstance(reward, nn.Module) or not callable(reward) or inspect.iscoroutinefunction(reward):
        raise InputError(
            f"a reward that is a {type(reward).__name__}",
            expected="a plain function",
            fix="audit a reward function beside it, which may return None for every completion",
        )

    @functools.wraps(reward)
    def audited(
        *, trainer_state: _HasStep, log_metric: Callable[[str, float], None], **columns: object
    ) -> Sequence[float | None]:
        step = trainer_state.global_step
        if model.training and step != auditor.last_step and auditor.is_due(step):
            finding = auditor.on_step(step, read(model), served(step), masters=read_masters(model))
            for name, value in finding.metrics().items():
                log_metric(name, value)
        return reward(trainer_state=trainer_state, log_metric=log_metric, **columns)

    return cast(Reward, audited)
