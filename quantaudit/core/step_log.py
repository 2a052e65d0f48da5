"""The log of a training run under audit: one JSON object a line, what every step's check saw and what it found.

A run writes `RunStarted`, then a `StepRecord` for every step with the `Finding`s of that step behind it, and last
`RunEnded`. Lines are only ever added and are on disk before the run goes on, so a killed run leaves a log that ends in
the middle of a line at worst; whoever resumes rewinds the log to the step of the state that it resumes from.
"""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from quantaudit.core.errors import InputError
from quantaudit.core.serial import Frozen, to_strict, write_atomically
from quantaudit.core.verdict import ExitCode

STEP_LOG_VERSION: Final = 1
UNEXPLAINED = "unexplained"


class RunKind(StrEnum):
    """What is trained, and how."""

    QAT = "qat"
    RL = "rl"
    HOOK = "hook"  # somebody else's trainer


class Side(StrEnum):
    """Where weights were read."""

    TRAINER = "trainer"  # the fake-quantized tensors that the trainer computes with
    SENT = "sent"  # packed bytes as they left the trainer, decoded by the reference
    LOADED = "loaded"  # packed bytes as they arrived in the engine, decoded by the reference
    DERIVED = "derived"  # the engine's own kernel layout, decoded


class SideCheck(Frozen):
    """The fingerprint of one side.

    Attributes:
        side: Which side.
        num_tensors: Quantized weights on this side.
        num_checked: Matrices of experts that were looked at in this step.
        num_matrices: Matrices of experts on this side.
        values: Leaf over all values that were looked at, 32 hex digits.
        differing: Module names whose values are not the trainer's.
    """

    side: Side
    num_tensors: int
    num_checked: int
    num_matrices: int
    values: str = Field(pattern=r"^[0-9a-f]{32}$")
    differing: tuple[str, ...] = ()


class GapNumbers(Frozen):
    """How far two sets of log-probabilities of the same tokens are apart; nats, masked tokens left out.

    With d = serve - train, token by token, and r = exp(-d), the importance weight of a token that the server sampled:

    Attributes:
        num_tokens: Tokens compared.
        mean: Mean of |d|.
        p50: Median of |d|.
        p99: 99th percentile of |d|.
        max: Largest |d|.
        k1: Mean of d: an unbiased estimate of KL(serve || train), which may be negative.
        k3: Mean of r - 1 + d: unbiased too, of smaller variance, never negative.
        ess: Effective share of the sample, (sum r)^2 / (n sum r^2); 1 is no loss.
        num_extreme: Tokens with r outside [1/2, 2].
        num_confident: Tokens that one side gives at least 0.9 and the other at most 0.5.
    """

    num_tokens: int
    mean: float
    p50: float
    p99: float
    max: float
    k1: float
    k3: float
    ess: float
    num_extreme: int
    num_confident: int


class CanaryCheck(Frozen):
    """A fixed batch, run by the engine and replayed by the trainer under the execution that the engine declares.

    Attributes:
        num_values: Numbers compared.
        num_differing: Those whose bits differ.
        max_difference: Largest distance, nats.
        declared: The execution that the engine declares, in words.
        reproduced_by: The execution whose replay gives the engine's bits; empty if none of the candidates does.
    """

    num_values: int
    num_differing: int
    max_difference: float
    declared: str
    reproduced_by: str = ""


class TransportCheck(Frozen):
    """What became of tensors that were overwritten with noise in the engine before a sync brought them back.

    Attributes:
        num_randomised: Tensors overwritten.
        not_restored: Names of those that the sync did not bring back.
    """

    num_randomised: int
    not_restored: tuple[str, ...] = ()


class FindingKind(StrEnum):
    """Where a mismatch lies."""

    STATE = "state"  # stored or decoded values
    EXECUTION = "execution"  # the computation on equal values
    TRANSPORT = "transport"  # what carries values from one to the other


class RunStarted(Frozen):
    """The head of a log.

    Attributes:
        run: What is trained.
        model: Name or digest of the model that training starts from.
        recipe: Name of the recipe.
        settings_digest: Digest of all settings.
        arithmetic: Arithmetic digest of every weight scheme of the trainer, by scheme name.
        environment: Versions, device, threads.
        inject: Mismatches that are planted, as they were asked for.
        command: What reproduces the run.
    """

    event: Literal["started"] = "started"
    schema_version: Literal[1] = STEP_LOG_VERSION
    run: RunKind
    model: str = ""
    recipe: str = ""
    settings_digest: str = ""
    arithmetic: dict[str, str] = {}
    environment: dict[str, str] = {}
    inject: tuple[str, ...] = ()
    command: str = ""


class StepRecord(Frozen):
    """One step: what was trained and what its check saw.

    Attributes:
        step: 0-based; strictly increasing in a log.
        loss: Of this step.
        reward: Mean reward of the rollouts; `None` without a reward.
        kl: KL of the policy to the reference or to the one before, as the loss takes it; `None` without.
        weight_version: Version that the engine says it serves.
        staleness: Updates that the served weights are behind the trainer's; `None` if it is not known.
        checks: One a side; empty where this step was not checked.
        layer_set: Digest of the names and schemes of the quantized weights.
        num_quantized: How many those are.
        gap: Rollout against trainer, natural routing.
        forced_gap: The same with the engine's routing forced on the trainer.
        floor: The same-step floor: the trainer's weights through the engine's execution, against the trainer.
        canary: The canary batch.
        transport: The check of the transport.
        seconds: Of the step, wall clock.
        check_seconds: Of its check, included in `seconds`.
    """

    event: Literal["step"] = "step"
    step: int = Field(ge=0)
    loss: float | None = None
    reward: float | None = None
    kl: float | None = None
    weight_version: int | None = None
    staleness: int | None = None
    checks: tuple[SideCheck, ...] = ()
    layer_set: str = ""
    num_quantized: int = 0
    gap: GapNumbers | None = None
    forced_gap: GapNumbers | None = None
    floor: GapNumbers | None = None
    canary: CanaryCheck | None = None
    transport: TransportCheck | None = None
    seconds: float = 0.0
    check_seconds: float = 0.0


class Finding(Frozen):
    """One mismatch, found at one step.

    Attributes:
        step: When it was found.
        name: The mismatch, or "unexplained".
        kind: Where it lies.
        code: K1 to K15; empty if it is none of these.
        tensor: Module name of the first tensor that it touches; empty for what touches none.
        num_tensors: Tensors that it touches.
        expert: First expert that differs; `None` outside experts.
        coordinate: First place that differs, [row, column].
        num_differing: Values that differ.
        between: The two sides that part there; empty for executions.
        field: The setting on which they disagree.
        train: What the trainer does.
        serve: What the server does.
        explains: Share of the differing values that it accounts for; 1 is all of them, bit for bit.
        sentence: What happened.
        latent: Whether it changes no value, so that only its cause was seen.
    """

    event: Literal["finding"] = "finding"
    step: int = Field(ge=0)
    name: str
    kind: FindingKind
    code: str = ""
    tensor: str = ""
    num_tensors: int = 0
    expert: int | None = None
    coordinate: tuple[int, ...] = ()
    num_differing: int = 0
    between: tuple[Side, ...] = ()
    field: str = ""
    train: str = ""
    serve: str = ""
    explains: float | None = None
    sentence: str = ""
    latent: bool = False


class RunStatus(StrEnum):
    """How a run ended."""

    COMPLETED = "completed"
    STOPPED = "stopped"  # by an error, with its sentence; it can be resumed


class RunVerdict(StrEnum):
    """What a run comes to."""

    CLEAN = "clean"  # every step was checked on every side, and nothing was found
    MISMATCH = "mismatch"
    UNCHECKED = "unchecked"  # nothing was found, but something was not looked at

    @property
    def exit_code(self) -> ExitCode:
        """Returns 0 for clean, 3 for a mismatch, 4 where something was not checked."""
        return {
            RunVerdict.CLEAN: ExitCode.PASS,
            RunVerdict.MISMATCH: ExitCode.REJECTED,
            RunVerdict.UNCHECKED: ExitCode.INCONCLUSIVE,
        }[self]


class RunEnded(Frozen):
    """The last line of a log.

    Attributes:
        status: How it ended.
        verdict: What it comes to.
        step: Last step that was finished; `None` if there is none.
        reason: Why it stopped, or what was not checked.
    """

    event: Literal["ended"] = "ended"
    status: RunStatus
    verdict: RunVerdict
    step: int | None = None
    reason: str = ""


Event: TypeAlias = Annotated[RunStarted | StepRecord | Finding | RunEnded, Field(discriminator="event")]
_EVENTS: TypeAdapter[Event] = TypeAdapter(Event)


class EventLog:
    """A log file: lines are added, never changed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, event: Event) -> None:
        """Writes an event and waits until it is on disk; a torn line that a killed run left is cut off first."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a+b") as stream:
            _cut_torn_line(stream.fileno())
            stream.write(_line(event))
            stream.flush()
            os.fsync(stream.fileno())

    def read(self) -> tuple[Event, ...]:
        """Returns all events; a last line that has no end is left out.

        Raises:
            InputError: If there is no such file, or a line is no event.
        """
        try:
            lines = self.path.read_bytes().split(b"\n")
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be read ({error.strerror})",
                expected="the events.jsonl of a run",
                fix="give the folder that `quantaudit simulate -o` wrote",
            ) from None
        return tuple(self._parse(number, line) for number, line in enumerate(lines[:-1], start=1))

    def rewind(self, step: int | None) -> None:
        """Removes what a resumed run will write again: steps after `step`, their findings, and the end.

        Args:
            step: Last step whose result the state holds; `None` for none.
        """
        last = -1 if step is None else step
        kept = [e for e in self.read() if isinstance(e, RunStarted) or (not isinstance(e, RunEnded) and e.step <= last)]
        write_atomically(self.path, b"".join(map(_line, kept)))

    def _parse(self, number: int, line: bytes) -> Event:
        try:
            return _EVENTS.validate_json(line)
        except ValueError as error:
            raise InputError(
                f"line {number} of {self.path} is no event of a run ({str(error).splitlines()[0]})",
                expected=f"events of step log version {STEP_LOG_VERSION}, one JSON object a line",
                fix="start the run again in an empty folder, or read it with the version that wrote it",
            ) from None


def _line(event: Event) -> bytes:
    return json.dumps(to_strict(event.model_dump(mode="json")), allow_nan=False).encode() + b"\n"


def _cut_torn_line(file: int) -> None:
    """Cuts a file behind its last line end."""
    size = os.fstat(file).st_size
    while size and os.pread(file, 1, size - 1) != b"\n":
        size -= 1
    os.ftruncate(file, size)
