"""What a step's audit found: per tensor, for people, and as numbers for a trainer's logger."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "quantaudit"
_SHOWN = 8


class StepStatus(StrEnum):
    """What a step comes to."""

    EQUAL = "equal"
    DIFFERENT = "different"
    NOT_CHECKED = "not checked"


class Fault(StrEnum):
    """What is wrong with a tensor."""

    VALUES = "other values served"
    NOT_SERVED = "not served"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """Where two tensors part.

    Attributes:
        coordinate: Of the first differing value: expert, row and column, or row and column of a dense tensor.
        trainer_bits: Its fp32 bits in the trainer, 8 hex digits.
        served_bits: The same in the engine.
        num_values: Values that differ, in the matrices that were looked at.
    """

    coordinate: tuple[int, ...]
    trainer_bits: str
    served_bits: str
    num_values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFinding:
    """One tensor that is not served as it is trained.

    Attributes:
        name: Its name.
        fault: What is wrong.
        experts: Experts that differ; empty outside stacks, or where only the whole could be compared.
        first: Where they part; `None` if one side is a manifest.
        explanation: What reproduces the served bits, such as "mxfp4-floor of the masters" or "values of step 3";
            empty if nothing that was tried does.
    """

    name: str
    fault: Fault
    experts: tuple[int, ...] = ()
    first: FirstDifference | None = None
    explanation: str = ""

    def __str__(self) -> str:
        words = [f"{self.name}: {self.fault}"]
        if self.experts:
            shown = " ".join(map(str, self.experts[:_SHOWN]))
            words.append(f"experts {shown}{' and more' if len(self.experts) > _SHOWN else ''}")
        if self.first is not None:
            at = self.first
            words.append(
                f"{at.num_values} values, first at {list(at.coordinate)} with bits {at.trainer_bits} trained and "
                f"{at.served_bits} served"
            )
        if self.explanation:
            words.append(f"the engine has {self.explanation}")
        return ", ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinding:
    """What one step's audit found.

    Attributes:
        step: The step.
        status: What it comes to.
        num_checked: Matrices that were compared.
        num_matrices: Matrices that there are; more than were compared where a sample rotates.
        tensors: What is wrong, in the order of names.
        num_different: Matrices that differ, and tensors that are not served.
        seconds: Wall time of the audit.
    """

    step: int
    status: StepStatus
    num_checked: int = 0
    num_matrices: int = 0
    num_different: int = 0
    tensors: tuple[TensorFinding, ...] = ()
    seconds: float = 0.0

    def metrics(self) -> dict[str, float]:
        """Returns numbers for a logger; `quantaudit/different` is zero where train and serve are equal."""
        found = {"checked": float(self.num_checked), "seconds": self.seconds}
        if self.status is not StepStatus.NOT_CHECKED:
            found |= {"different": float(self.num_different), "coverage": self.num_checked / max(self.num_matrices, 1)}
        return {f"{PREFIX}/{key}": value for key, value in found.items()}

    def __str__(self) -> str:
        head = f"step {self.step}: {self.status}, {self.num_checked} of {self.num_matrices} matrices compared"
        return "\n  ".join([head, *map(str, self.tensors)])
