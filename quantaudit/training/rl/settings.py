"""Everything that decides a reinforcement-learning run, apart from the model and the recipe."""

from __future__ import annotations

import json
import math
import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from quantaudit.core.errors import InputError
from quantaudit.core.serial import Frozen
from quantaudit.training.fake_quantize import Estimator
from quantaudit.training.rl.sampling import LogprobsOf, Sampling
from quantaudit.training.rl.sync import QuantizeAt

# Most items are of the harder family, where there is something to learn; the others keep what is known.
SHARES = {"two-step": 0.9, "recall": 0.04, "restricted": 0.02, "wrapped": 0.02, "benign": 0.02}


class OldLogprobs(StrEnum):
    """The denominator of the policy ratio."""

    ROLLOUT = "rollout"  # as the engine reported them
    RECOMPUTE = "recompute"  # the trainer's own, under the weights that the tokens were written with


class Reward(StrEnum):
    """What an answer is worth."""

    EXACT = "exact"  # 1 if it is right, byte for byte, and ends there
    COIN = "coin"  # 1 or 0 by a seeded coin: nothing to learn, but weights move, whatever the model is


class Correction(StrEnum):
    """How tokens are weighted for the distance between the engine that wrote them and the trainer that learns."""

    NONE = "none"
    TRUNCATED_TOKEN = "truncated-token"  # weight min(w, high), token by token
    TRUNCATED_SEQUENCE = "truncated-sequence"  # the same, w of the whole sequence
    MASKED_TOKEN = "masked-token"  # weight w inside [low, high], outside it the token is left out
    MASKED_SEQUENCE = "masked-sequence"  # the same, w of the whole sequence


class Replay(StrEnum):
    """What of the engine's routing the trainer takes over."""

    NONE = "none"
    IDS = "ids"  # the experts; weights are the trainer's own
    IDS_AND_WEIGHTS = "ids-and-weights"


class ObjectiveSettings(Frozen):
    """The loss.

    Attributes:
        clip_low: The ratio is clipped below at 1 - this.
        clip_high: And above at 1 + this.
        squared_log_ratio: Weight of the mean squared log-ratio; 0 is none.
        old_logprobs: What the ratio is taken to.
        correction: Weights for the distance between engine and trainer; needs recomputed log-probabilities.
        weight_low: Smallest weight that is not masked.
        weight_high: Largest weight that is not truncated or masked.
        scale_by_deviation: Whether advantages are divided by the standard deviation of their group.
    """

    clip_low: float = Field(default=0.2, gt=0.0, lt=1.0)
    clip_high: float = Field(default=0.28, gt=0.0)
    squared_log_ratio: float = Field(default=0.01, ge=0.0)
    old_logprobs: OldLogprobs = OldLogprobs.RECOMPUTE
    correction: Correction = Correction.TRUNCATED_TOKEN
    weight_low: float = Field(default=0.5, gt=0.0)
    weight_high: float = Field(default=2.0, gt=0.0)
    scale_by_deviation: bool = True

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.correction is not Correction.NONE and self.old_logprobs is OldLogprobs.ROLLOUT:
            raise ValueError(
                f"correction {self.correction} with old_logprobs = rollout: the ratio holds that distance already; "
                "take old_logprobs = recompute, or no correction"
            )
        if self.weight_low >= self.weight_high:
            raise ValueError(f"weight_low {self.weight_low} is not below weight_high {self.weight_high}")
        return self


class Trains(StrEnum):
    """Which masters learn; the routers' biases never do."""

    EXPERTS = "experts"
    ALL_BUT_ROUTERS = "all-but-routers"
    ALL = "all"


class RlSettings(Frozen):
    """A run.

    Attributes:
        steps: Optimizer steps.
        seed: Of items, draws and noise.
        prompts_per_step: Prompts of a step.
        group_size: Samples of a prompt.
        shares: Share of every family among the prompts.
        reward: What an answer is worth.
        learning_rate: Of AdamW, at its peak.
        adam_eps: Added to the root of AdamW's second moment: gradients far below it move a weight little.
        warmup_steps: Steps over which the rate rises; at most a tenth of the run.
        decay_steps: Steps over which it falls to 0, up to the end of the run; at most three fifths of it.
        clip_norm: Largest norm of the gradient.
        trains: Which masters learn.
        drops_even_groups: Whether groups whose answers are all worth the same, which teach nothing, are left out.
        estimator: Gradient through the rounding.
        sampling: How tokens are drawn, and what log-probabilities are of.
        objective: The loss.
        lag: Updates between writing tokens and learning from them.
        partial_tokens: Most tokens that a sequence gets in one step; the rest is written after the next sync. 0 is
            no limit.
        replay: What of the engine's routing the trainer takes over.
        quantize_at: Where weights become codes.
        num_shards: Expert-parallel shards of the engine.
        bucket_bytes: Size of a bucket.
        sleeps: Whether the engine sleeps while the trainer learns.
        tokens_together: Tokens of a micro batch.
        transport_every: Steps from one check of the transport to the next; 0 is never.
        floor_every: Steps from one measurement of the same-step floor to the next; 0 is never.
        save_every: Steps from one state on disk to the next.
        timeout_seconds: Deadline of every command to the engine.
        held_out: Held-out prompts whose greedy reward is measured before and after; 0 is none.
        held_out_family: Their family.
        confirm: Other prompts of it, whose greedy reward under the first and the last weights is measured when the run
            is over; 0 is none.
    """

    schema_version: Literal[1] = 1
    steps: int = Field(default=200, ge=1)
    seed: int = 0
    prompts_per_step: int = Field(default=96, ge=1)
    group_size: int = Field(default=4, ge=2)
    shares: dict[str, float] = SHARES
    reward: Reward = Reward.EXACT
    learning_rate: float = Field(default=2.5e-4, gt=0.0)
    adam_eps: float = Field(default=1e-8, gt=0.0)
    warmup_steps: int = Field(default=20, ge=1)
    decay_steps: int = Field(default=120, ge=1)
    clip_norm: float = Field(default=1.0, gt=0.0)
    trains: Trains = Trains.ALL_BUT_ROUTERS
    drops_even_groups: bool = True
    estimator: Estimator = Estimator.PLAIN
    sampling: Sampling = Sampling(temperature=1.0, logprobs=LogprobsOf.PROCESSED)
    objective: ObjectiveSettings = ObjectiveSettings()
    lag: int = Field(default=0, ge=0)
    partial_tokens: int = Field(default=0, ge=0)
    replay: Replay = Replay.NONE
    quantize_at: QuantizeAt = QuantizeAt.TRAINER
    num_shards: int = Field(default=2, ge=1)
    bucket_bytes: int = Field(default=1 << 18, ge=1)
    sleeps: bool = True
    tokens_together: int = Field(default=4096, ge=1)
    transport_every: int = Field(default=50, ge=0)
    floor_every: int = Field(default=10, ge=0)
    save_every: int = Field(default=25, ge=1)
    timeout_seconds: float = Field(default=120.0, gt=0.0)
    held_out: int = Field(default=200, ge=0)
    held_out_family: str = "two-step"
    confirm: int = Field(default=200, ge=0)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if not self.shares or any(not math.isfinite(s) or s < 0 for s in self.shares.values()):
            raise ValueError("shares need at least one family, and no share below 0")
        if self.sampling.is_greedy:
            raise ValueError("temperature 0 writes the same answer a whole group through, so nothing is learned")
        return self


def read_settings(path: Path) -> RlSettings:
    """Reads settings from a TOML or JSON file; what it does not name keeps its default.

    Raises:
        InputError: If the file cannot be read, or holds something else.
    """
    try:
        text = path.read_text("utf-8")
        table = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return RlSettings.model_validate(table)
    except OSError as error:
        raise InputError(
            f"{path} ({error.strerror})", expected="a TOML or JSON file of settings", fix="correct --settings"
        ) from None
    except ValueError as error:
        lines = str(error).splitlines()
        raise InputError(
            f"{path}: {' '.join(line.strip() for line in lines[1:3]) or lines[0]}",
            expected="fields of a run's settings, such as steps = 200 and [objective] clip_low = 0.2",
            fix="correct the file",
        ) from None
