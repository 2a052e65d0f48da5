"""Recipes: ordered rules that say which tensors get which scheme, and how the result is executed."""

from __future__ import annotations

import fnmatch
from enum import StrEnum

from pydantic import Field, field_validator

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


class Recipe(Frozen):
    """A deployment in words a machine can follow. First matching rule wins; a rule that matches nothing is an error.

    Attributes:
        notes: Sentences that every report of this recipe must repeat, such as an assumption about an undisclosed rule.
        requantize: Whether an already quantized tensor may be quantized by another scheme (double quantization).
    """

    schema_version: int = 1
    name: str = Field(min_length=1)
    description: str = ""
    notes: tuple[str, ...] = ()
    requantize: bool = False
    execution: Execution = Execution()
    rules: tuple[Rule, ...] = ()

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

    def is_identity(self) -> bool:
        """Tells whether the recipe changes nothing."""
        return not self.rules
