"""Recipes: ordered rules that say which tensors get which scheme, how the result is executed, and how it is repaired.

`run` uses rules and execution; `recipe run` also calibrates (chooses what the rules leave open, on the select split)
and repairs (trains, on the train split) or compensates errors of rounding (GPTQ, on the train split).
"""

from __future__ import annotations

import fnmatch
from enum import StrEnum
from typing import Self

from pydantic import Field, field_validator, model_validator

from quantaudit.core.serial import Frozen


class ComputeDtype(StrEnum):
    """Dtype of everything in a forward that is not widened; accumulation is fp32 or wider."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Execution(Frozen):
    """How a realization is run."""

    dtype: ComputeDtype = ComputeDtype.FLOAT32


class Rule(Frozen):
    """Gives the tensors it matches a weight scheme and an activation scheme.

    Attributes:
        match: Shell-style pattern over module names, such as `layers.*.experts.w1`; `experts.*` means the stacked
            routed experts of a layer.
        weight: Name of the scheme of the weight; `None` keeps the weight as it is.
        activation: Name of the scheme of the GEMM's input, dynamic; `None` keeps the input as it is.
    """

    match: str = Field(min_length=1)
    weight: str | None = None
    activation: str | None = None

    def covers(self, module: str) -> bool:
        """Tells whether this rule matches the module name (case matters)."""
        return fnmatch.fnmatchcase(module, self.match)


class Estimator(StrEnum):
    """Which gradient passes through a rounding."""

    PLAIN = "plain"
    MASKED = "masked"  # none where the value was clipped


class Divergence(StrEnum):
    """How far the repaired model is from hi, position by position."""

    FORWARD = "forward"  # KL(hi || lo)
    REVERSE = "reverse"  # KL(lo || hi)
    JENSEN_SHANNON = "jensen-shannon"


class OptimizerKind(StrEnum):
    """What turns gradients into steps."""

    ADAMW = "adamw"
    MUON = "muon"  # matrices orthogonalised (per head for Q, K, V; per expert), everything else by AdamW


class Trained(StrEnum):
    """Which parameters a repair changes."""

    EXPERTS = "experts"
    ALL_BUT_ROUTERS = "all-but-routers"
    ALL = "all"


class Repair(Frozen):
    """Training under fake quantization, on the train split.

    The loss of a scored position is `cross_entropy` times the cross-entropy plus `distillation` times the divergence
    from hi, times the weight of its family; a step's loss is the weighted mean over its positions.

    Attributes:
        steps: Optimizer steps.
        items_per_step: Items of the closed world in each.
        micro_batches: Pieces they are cut into; each weight is fake-quantized once for all of them.
        learning_rate: Peak rate of the experts.
        other_rate: What the rate of everything else is multiplied by.
        scale_rate: Rate of learned scales.
        warmup_steps: Steps of linear warm-up; the rate then falls linearly to zero.
        weight_decay: Of matrices, decoupled.
        clip_norm: Largest norm of the gradient.
        cross_entropy: Weight of the cross-entropy.
        distillation: Weight of the divergence.
        divergence: Which one.
        estimator: Gradient of the rounding.
        optimizer: What takes the steps.
        trained: Which parameters change.
        masters: Dtype of the parameters that are trained.
        balances_routers: Whether Quantile Balancing solves the routers' biases in every step; else they are frozen.
        learns_scales: Whether the scales of weights are learned (LSQ) instead of measured.
        families: Share of each family in the items.
        weights: Weight of a family's positions in the loss, 1 where not given.
        seed: Decides the items.
    """

    steps: int = Field(ge=1)
    items_per_step: int = Field(default=96, ge=1)
    micro_batches: int = Field(default=2, ge=1)
    learning_rate: float = Field(gt=0)
    other_rate: float = Field(default=1.0, ge=0)
    scale_rate: float = Field(default=0.0, ge=0)
    warmup_steps: int = Field(default=10, ge=1)
    weight_decay: float = Field(default=0.0, ge=0)
    clip_norm: float = Field(default=1.0, gt=0)
    cross_entropy: float = Field(default=0.0, ge=0)
    distillation: float = Field(default=0.0, ge=0)
    divergence: Divergence = Divergence.FORWARD
    estimator: Estimator = Estimator.PLAIN
    optimizer: OptimizerKind = OptimizerKind.ADAMW
    trained: Trained = Trained.ALL_BUT_ROUTERS
    masters: ComputeDtype = ComputeDtype.FLOAT32
    balances_routers: bool = False
    learns_scales: bool = False
    families: dict[str, float] = Field(min_length=1)
    weights: dict[str, float] = Field(default_factory=dict)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _has_a_loss(self) -> Self:
        if self.cross_entropy == 0 and self.distillation == 0:
            raise ValueError("a repair needs a loss: cross_entropy, distillation, or both above zero")
        if self.learns_scales != (self.scale_rate > 0):
            raise ValueError("scale_rate belongs to learns_scales, and neither goes without the other")
        if any(share <= 0 for share in self.families.values()) or any(w < 0 for w in self.weights.values()):
            raise ValueError("shares of families are above zero, and their weights not below it")
        return self


class Calibration(Frozen):
    """Keeps the stacks that suffer most in another scheme, chosen on the select split before any training.

    A stack suffers by its squared weight error, expert by expert times the share of the rows that the expert gets.

    Attributes:
        scheme: Weight scheme of the stacks that are kept.
        stacks: How many of the recipe's stacks.
        probes_per_family: Probes of the select split that decide the load.
    """

    scheme: str
    stacks: int = Field(ge=1)
    probes_per_family: int = Field(default=40, ge=1)


class Gptq(Frozen):
    """Chooses codes that make up for each other's errors on calibration inputs, instead of the nearest ones.

    Attributes:
        items_per_family: Items of the train split, of every family that is trained.
        dampening: Share of the mean of the Hessian's diagonal that is added to it.
        seed: Decides the items.
    """

    items_per_family: int = Field(default=48, ge=1)
    dampening: float = Field(default=0.01, gt=0)
    seed: int = Field(default=0, ge=0)


class Recipe(Frozen):
    """A deployment in words a machine can follow. First matching rule wins; a rule that matches nothing is an error.

    Attributes:
        notes: Sentences that every report of this recipe must repeat, such as an assumption about an undisclosed rule.
        requantize: Whether an already quantized tensor may be quantized by another scheme (double quantization).
        calibration: What `recipe run` chooses first; nothing when `None`.
        repair: How `recipe run` trains; not at all when `None`.
        gptq: How `recipe run` chooses codes; the nearest when `None`.
    """

    schema_version: int = 1
    name: str = Field(min_length=1)
    description: str = ""
    notes: tuple[str, ...] = ()
    requantize: bool = False
    execution: Execution = Execution()
    rules: tuple[Rule, ...] = ()
    # Not written where there is none: recipes without them keep the digest they have always had.
    calibration: Calibration | None = Field(default=None, exclude_if=lambda value: value is None)
    repair: Repair | None = Field(default=None, exclude_if=lambda value: value is None)
    gptq: Gptq | None = Field(default=None, exclude_if=lambda value: value is None)

    @model_validator(mode="after")
    def _has_one_cure(self) -> Self:
        if self.repair is not None and self.gptq is not None:
            raise ValueError("a recipe has [repair] or [gptq], not both")
        return self

    @field_validator("rules")
    @classmethod
    def _rules_do_something(cls, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        for rule in rules:
            if rule.weight is None and rule.activation is None:
                raise ValueError(f"the rule for {rule.match!r} names neither a weight nor an activation scheme")
        return rules

    def rule_for(self, module: str) -> Rule | None:
        """Returns the first rule that matches the module name."""
        return next((rule for rule in self.rules if rule.covers(module)), None)

    def rounds_to_nearest(self) -> bool:
        """Tells whether rules and execution are all there is to it."""
        return self.repair is None and self.gptq is None

    def is_identity(self) -> bool:
        """Tells whether the recipe changes nothing."""
        return not self.rules
