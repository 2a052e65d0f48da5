"""Quantization-aware training, one optimizer step after the other.

A step draws its items from (seed, step), runs them in micro batches through the model in training (and through hi where
it distils), steps the optimizer, solves the routers' biases where the repair asks for it, and forgets the quantized
weights. Its bits are a function of the model, the repair and the step, so a run can be stopped after any step and go on
from its state as if nothing had happened.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.recipe import Repair
from quantaudit.model.lm import LanguageModel
from quantaudit.model.tap import Tap, untapped
from quantaudit.training.data import Batch, TrainStream
from quantaudit.training.embedded import RouterScores, balance_routers
from quantaudit.training.fake_quantize import forget_weights
from quantaudit.training.losses import measure_loss
from quantaudit.training.optimizers import build_optimizers, choose_parameters, clip_gradients, factor_at
from quantaudit.training.run_state import (
    Note,
    check_moments,
    copy_into,
    read_run_state,
    refusing_damage,
    write_run_state,
)

_MODEL, _OPTIMIZER = "model.", "optimizer."


class QatTrainer:
    """A model in training, and where its run is.

    Attributes:
        model: The model; its parameters are the masters.
        step: Optimizer steps taken.
    """

    def __init__(
        self, model: LanguageModel, hi: LanguageModel | None, repair: Repair, stream: TrainStream | None = None
    ) -> None:
        """Freezes what the repair does not train and builds the optimizer.

        Args:
            model: Prepared, or plain for a control arm; changed in place.
            hi: The reference, for distillation.
            repair: How to train.
            stream: Where items come from; the closed world's training split when `None`.
        """
        self.model = model
        self.step = 0
        self._hi = hi
        self._repair = repair
        self._stream = TrainStream(repair) if stream is None else stream
        self._named = choose_parameters(model, repair.trained)
        self._optimizers = build_optimizers(self._named, model.config, repair)

    def take_step(self) -> float:
        """Takes one optimizer step; returns the loss before it, nats per scored token.

        Raises:
            InputError: If the loss is not finite; the model is then as the step found it.
        """
        scores = RouterScores() if self._repair.balances_routers else None
        self._optimizers.zero_grad()
        batches = self._stream.batches(self.step)
        total = sum(self._add_gradients(batch, untapped if scores is None else scores) for batch in batches)
        if not math.isfinite(total):
            raise InputError(
                f"a loss of {total} in step {self.step + 1} of {self._repair.steps}",
                expected="a finite loss",
                fix="lower learning_rate in the recipe's [repair]; the state before the step is kept",
            )
        clip_gradients(self._named.values(), self._repair.clip_norm)
        self._optimizers.step(factor_at(self.step, self._repair))
        if scores is not None:
            balance_routers(self.model, scores)
        forget_weights(self.model)
        self.step += 1
        return total

    def _add_gradients(self, batch: Batch, tap: Tap) -> float:
        """Runs one micro batch forward and backward; returns its part of the loss."""
        packed = batch.packed
        hi_logits_MV = self._ask_hi(batch) if self._repair.distillation > 0 else None
        logits_MV = self.model(packed.tokens_N, packed.segments, tap=tap, selected_M=packed.selected_M)
        loss = measure_loss(logits_MV, packed.target_M, hi_logits_MV, batch.weight_M, self._repair)
        loss.backward()
        return float(loss.detach())

    @torch.no_grad()
    def _ask_hi(self, batch: Batch) -> Tensor:
        if self._hi is None:
            raise InputError("a repair that distils, without hi", expected="hi's model", fix="pass it to the trainer")
        packed = batch.packed
        logits_MV: Tensor = self._hi(packed.tokens_N, packed.segments, selected_M=packed.selected_M)
        return logits_MV

    def save(self, folder: Path, notes: Mapping[str, Note] | None = None) -> None:
        """Writes all that the rest of the run depends on, whole or not at all.

        Args:
            folder: Where to.
            notes: What others remember of the run, by part.
        """
        tensors = {_MODEL + name: value.detach() for name, value in self.model.named_parameters()}
        tensors |= {_OPTIMIZER + name: value for name, value in self._optimizers.state_tensors().items()}
        write_run_state(folder, tensors, {"step": str(self.step), "repair": self._repair.digest()}, notes)

    @torch.no_grad()
    def load(self, folder: Path) -> bool:
        """Goes back to the state in a folder; returns whether there is one.

        Raises:
            InputError: If it is the state of another repair or model, or damaged.
        """
        state = read_run_state(folder)
        if state is None:
            return False
        if state.facts.get("repair") != self._repair.digest():
            raise InputError(
                f"{folder} holds the state of another repair",
                expected="the state of this recipe with these settings",
                fix="choose another folder, or remove it",
            )
        moments = {n.removeprefix(_OPTIMIZER): v for n, v in state.tensors.items() if n.startswith(_OPTIMIZER)}
        with refusing_damage(folder):
            for name, parameter in self.model.named_parameters():
                copy_into(parameter, state.tensors, _MODEL + name)
            self._optimizers.load_state_tensors(moments)
            for part in self._optimizers.parts:
                check_moments(part)
            self.step = int(state.facts["step"])
        forget_weights(self.model)
        return True
