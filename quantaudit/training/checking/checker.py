"""One check, top to bottom: compare the sides, diagnose what parts, replay the canary, look at versions and rules.

The checker keeps the sources and the packed weights of the last steps, to recognise what was left behind. A mismatch is
reported at the step at which it appears and not again while it stays; the checks of every step name the tensors that
differ all the same. All that it keeps is one value, so that a run can be resumed with it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.step_log import CanaryCheck, Finding, FindingKind, Side, SideCheck, TransportCheck
from quantaudit.engines.stored import StoredTensor
from quantaudit.training.checking.canary import CanaryRun, check_canary
from quantaudit.training.checking.diagnosis import diagnose_step
from quantaudit.training.checking.evidence import History
from quantaudit.training.checking.fingerprints import Compared, compare_sides, digest_layer_set
from quantaudit.training.checking.latent import find_latent
from quantaudit.training.checking.remembered import CheckerMemory
from quantaudit.training.checking.settings import CheckSettings
from quantaudit.training.checking.sides import Past, Shipped, Sides, TrainedWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """What the check of one step gave; the fields of a `StepRecord`, and the findings behind it.

    Attributes:
        checks: A fingerprint a side.
        findings: Mismatches that appeared at this step.
        layer_set: Digest of the quantized weights and their arithmetic.
        num_quantized: How many those are.
        canary: What the canary showed.
        transport: What the check of the transport showed.
        staleness: Updates that the served weights are behind.
        seconds: What all of it took.
    """

    checks: tuple[SideCheck, ...]
    findings: tuple[Finding, ...]
    layer_set: str
    num_quantized: int
    canary: CanaryCheck | None
    transport: TransportCheck | None
    staleness: int | None
    seconds: float


class StepChecker:
    """Checks the steps of one run, in order.

    Attributes:
        settings: What a check looks at.
        memory: What is known of the steps before; replaced by every step, and never changed.
    """

    def __init__(self, settings: CheckSettings | None = None, memory: CheckerMemory | None = None) -> None:
        """Begins, or goes on.

        Args:
            settings: What a check looks at.
            memory: That of the checker that a resumed run had; empty at the start of a run.
        """
        self.settings = settings or CheckSettings()
        self.memory = memory or CheckerMemory()

    def is_due(self, step: int) -> bool:
        """Says whether a step is checked."""
        return self.settings.schedule.is_due(step)

    def skip(self, step: int, trainer: Mapping[str, TrainedWeight], shipped: Mapping[str, Shipped]) -> None:
        """Remembers a step that is not checked, so that what it leaves behind is recognised later."""
        self._advance(step)
        self._remember(step, trainer, shipped)

    def check(
        self,
        step: int,
        sides: Sides,
        *,
        canary: CanaryRun | None = None,
        transport: TransportCheck | None = None,
    ) -> CheckOutcome:
        """Checks one step.

        Args:
            step: After the last one.
            sides: The weights on all sides, of one version.
            canary: The engine's canary, where there is one.
            transport: The result of the check of the transport, where one was made.

        Raises:
            InputError: If the step is not after the last one, or a side has weights that the trainer does not know.
        """
        started = time.perf_counter()
        self._advance(step)
        _refuse_strangers(sides)
        compared = compare_sides(sides, self.settings.schedule.experts(step))
        history = History(past=self.memory.past, first=self.memory.first)
        findings = list(self._diagnose(step, sides, compared, history))
        staleness = _staleness(sides)
        findings += self._new(
            (
                *find_latent(step, sides, compared, was_on_grid=self.memory.was_on_grid),
                *self._stale(step, staleness),
                *_lost(step, transport),
            )
        )
        canary_check = None
        if canary is not None:
            canary_check, found = self._check_canary(step, canary, compared)
            findings += found
        shipped = sides.sent if sides.sent is not None else sides.loaded
        self._remember(step, sides.trainer, shipped or {})
        schemes = {name: weight.scheme for name, weight in sides.trainer.items()}
        return CheckOutcome(
            checks=compared.checks,
            findings=tuple(findings),
            layer_set=digest_layer_set(schemes),
            num_quantized=sum(scheme is not None for scheme in schemes.values()),
            canary=canary_check,
            transport=transport,
            staleness=staleness,
            seconds=time.perf_counter() - started,
        )

    def _advance(self, step: int) -> None:
        last = self.memory.last_step
        if last is not None and step <= last:
            raise InputError(
                f"step {step} after step {last}",
                expected="steps in increasing order",
                fix="check every step once, or make a new checker for a run that starts again",
            )
        self.memory = replace(self.memory, last_step=step)

    def _diagnose(self, step: int, sides: Sides, compared: Compared, history: History) -> tuple[Finding, ...]:
        """Diagnoses what was not parted before, or parts at another place now."""
        before = self.memory.open
        parted = frozenset((leg, name) for leg, names in compared.parted.items() for name in names)
        is_sample = self.settings.schedule.period > 1  # what is not looked at now may well part still
        new = parted - before
        self.memory = replace(self.memory, open=before | parted if is_sample else parted)
        legs: dict[tuple[Side, Side], tuple[str, ...]] = {}
        for leg, names in compared.parted.items():
            kept = tuple(name for name in names if (leg, name) in new)
            if kept:
                legs[leg] = kept
        return diagnose_step(step, sides, replace(compared, parted=legs), history) if legs else ()

    def _new(self, findings: tuple[Finding, ...]) -> list[Finding]:
        """Returns those that did not stand at the check before."""
        before, standing = self.memory.standing, frozenset((f.name, f.tensor) for f in findings)
        self.memory = replace(self.memory, standing=standing)
        return [finding for finding in findings if (finding.name, finding.tensor) not in before]

    def _check_canary(self, step: int, run: CanaryRun, compared: Compared) -> tuple[CanaryCheck, list[Finding]]:
        """Replays the canary; where weights differ, or its difference is reported already, no cause is looked for."""
        outcome = check_canary(run, step, diagnose=not compared.parted and not self.memory.is_canary_open)
        is_open = outcome.check.num_differing > 0 and not compared.parted
        self.memory = replace(self.memory, is_canary_open=is_open)
        return outcome.check, [] if outcome.finding is None else [outcome.finding]

    def _stale(self, step: int, staleness: int | None) -> tuple[Finding, ...]:
        if staleness is None or staleness <= self.settings.max_staleness:
            return ()
        finding = Finding(
            step=step,
            name="stale-version",
            kind=FindingKind.TRANSPORT,
            code="K9",
            field="version",
            train=f"at most {self.settings.max_staleness} updates behind",
            serve=f"{staleness} updates behind",
            sentence="The engine serves weights that are older than the algorithm allows.",
        )
        return (finding,)

    def _remember(self, step: int, trainer: Mapping[str, TrainedWeight], shipped: Mapping[str, Shipped]) -> None:
        masters = {name: weight.master for name, weight in trainer.items()}
        past = Past(
            step=step,
            sources={name: _kept(weight.source, masters[name]) for name, weight in trainer.items()},
            shipped={n: w if isinstance(w, StoredTensor) else _kept(w, masters.get(n)) for n, w in shipped.items()},
        )
        kept = self.settings.memory + self.settings.schedule.longest_delay
        self.memory = replace(
            self.memory,
            past=(past, *self.memory.past)[:kept],
            first=self.memory.first or _scaled_whole(past),
            was_on_grid=all(w.scheme is None or _is_on_grid(w) for w in trainer.values()),
        )


def _scaled_whole(past: Past) -> Past:
    """Returns a step of which only those weights are kept that have a scale of the whole matrix."""
    shipped = {n: w for n, w in past.shipped.items() if isinstance(w, StoredTensor) and w.second_scales is not None}
    return Past(step=past.step, sources={}, shipped=shipped)


def _kept(tensor: Tensor, master: Tensor | None) -> Tensor:
    """Returns a tensor that the next update does not change: masters are changed in place."""
    is_alias = master is not None and tensor.untyped_storage().data_ptr() == master.untyped_storage().data_ptr()
    return tensor.detach().clone() if is_alias else tensor


def _is_on_grid(weight: TrainedWeight) -> bool:
    """Says whether the first expert of what is quantized is quantized already: a cheap sign that all of it is."""
    return torch.equal(weight.source[:1].float(), weight.values[:1])


def _refuse_strangers(sides: Sides) -> None:
    for side, weights in sides.served().items():
        strange = sorted(set(weights) - set(sides.trainer))
        if strange:
            raise InputError(
                f"{strange[0]} on the side {side.value!r}, which the trainer does not have",
                expected="weights of the model that is trained, under the trainer's names",
                fix="give the served weights of the same model, or translate their names",
            )


def _staleness(sides: Sides) -> int | None:
    if sides.trainer_version is None or sides.served_version is None:
        return None
    return sides.trainer_version - sides.served_version


def _lost(step: int, transport: TransportCheck | None) -> tuple[Finding, ...]:
    if transport is None or not transport.not_restored:
        return ()
    finding = Finding(
        step=step,
        name="not-transported",
        kind=FindingKind.TRANSPORT,
        code="K9",
        tensor=transport.not_restored[0],
        num_tensors=len(transport.not_restored),
        field="sync.tensors",
        train="overwritten, then synced",
        serve="still overwritten",
        sentence="A sync does not bring these tensors back: whatever they held before would have stayed.",
    )
    return (finding,)
