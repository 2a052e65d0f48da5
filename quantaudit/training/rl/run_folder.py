"""A run on disk: its settings, its log, and the state from which it goes on.

    settings.json     what decides the run; a resumed run must be given the same, but for the number of steps
    events.jsonl      the log of every step
    run.safetensors   masters, moments of the optimizer, answers that are not finished or not learned from, and what
                      checks, planted mismatches and the engine remember
    result.json       the rewards of the first and of the last weights, once the run is complete

The state holds everything that the next step depends on, so a killed run goes on with the bits of one that was not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.serial import Frozen, Json, write_atomically
from quantaudit.core.step_log import EventLog
from quantaudit.training.rl.memory import RoutingRecord
from quantaudit.training.rl.policy import Policy
from quantaudit.training.rl.samples import Sample, Task
from quantaudit.training.rl.settings import RlSettings
from quantaudit.training.run_state import (
    Note,
    check_moments,
    copy_into,
    read_run_state,
    refusing_damage,
    write_run_state,
)

SETTINGS_FILE, EVENTS_FILE, RESULT_FILE = "settings.json", "events.jsonl", "result.json"


class RunCard(Frozen):
    """`settings.json`: what decides the bits of a run.

    Attributes:
        model_digest: Digest of the weights that it starts from.
        recipe: Name of the recipe.
        recipe_digest: Its digest.
        inject: What is planted.
        settings: The settings.
    """

    model_digest: str
    recipe: str
    recipe_digest: str
    inject: tuple[str, ...] = ()
    settings: RlSettings

    def is_same_run(self, other: RunCard) -> bool:
        """Tells whether the other one goes on with this run: equal but for its end."""
        return self.model_copy(update={"settings": _endless(self.settings)}) == other.model_copy(
            update={"settings": _endless(other.settings)}
        )


def _endless(settings: RlSettings) -> RlSettings:
    """Returns the settings without what decides only when a run ends and what is measured then."""
    return settings.model_copy(update={"steps": 1, "confirm": 0})


@dataclass(slots=True, kw_only=True)
class Progress:
    """Where a run stands, apart from the trainer's tensors.

    Attributes:
        step: The next step.
        version: Optimizer steps taken.
        open_samples: Answers that are not finished.
        waiting: Finished groups by the step in which they became whole, oldest first.
        held_out_before: Greedy rewards of the first weights; `None` until they were measured.
    """

    step: int
    version: int
    open_samples: list[Sample]
    waiting: list[tuple[int, list[Sample]]]
    held_out_before: list[int] | None

    @classmethod
    def at_start(cls) -> Progress:
        """Returns the start of a run."""
        return cls(step=0, version=0, open_samples=[], waiting=[], held_out_before=None)


class Stand(NamedTuple):
    """Where a run stands: its progress, and the notes of those who remember something."""

    progress: Progress
    notes: Mapping[str, Note]


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = EventLog(path / EVENTS_FILE)

    def begin(self, card: RunCard) -> None:
        """Writes the settings of a new run.

        Raises:
            InputError: If the folder holds a run already.
        """
        if (self.path / SETTINGS_FILE).exists():
            raise InputError(
                f"{self.path}, which holds a run", expected="an empty folder", fix="add --resume, or choose another"
            )
        write_atomically(self.path / SETTINGS_FILE, card.to_json().encode())

    def check_resumable(self, card: RunCard) -> None:
        """Refuses to go on with another run's files.

        Raises:
            InputError: If there is no run, or it was started otherwise.
        """
        path = self.path / SETTINGS_FILE
        if not path.exists():
            raise InputError(f"{self.path}, which holds no run", expected="the folder of a run", fix="drop --resume")
        try:
            held = RunCard.from_json(path.read_text("utf-8"))
        except ValueError as error:
            raise InputError(
                f"{path} ({str(error).splitlines()[0]})",
                expected="the settings of a run of this version",
                fix="start again in an empty folder",
            ) from None
        if not held.is_same_run(card):
            raise InputError(
                f"{self.path} was started with another model, recipe, injection or other settings",
                expected="the same as now, but for the number of steps",
                fix=f"give what {path} says, or start again in an empty folder",
            )

    def save(self, policy: Policy, progress: Progress, notes: Mapping[str, Note]) -> None:
        """Writes the state, whole or not at all."""
        tensors = {f"master.{name}": master.detach() for name, master in policy.masters.items()}
        for index, moments in policy.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{key}": value for key, value in moments.items()}
        samples = [*progress.open_samples, *(s for _, group in progress.waiting for s in group)]
        for place, sample in enumerate(samples):
            if sample.routing is not None:
                tensors[f"routing.{place}.ids"] = sample.routing.ids_TLK
                tensors[f"routing.{place}.weights"] = sample.routing.weights_TLK
        facts: dict[str, Json] = {
            "step": progress.step,
            "version": progress.version,
            "num_open": len(progress.open_samples),
            "waiting": [[step, len(group)] for step, group in progress.waiting],
            "samples": [_write_sample(sample) for sample in samples],
            "held_out_before": None if progress.held_out_before is None else list(progress.held_out_before),
        }
        write_run_state(self.path, tensors, {"progress": json.dumps(facts, allow_nan=False)}, notes)

    def load(self, policy: Policy) -> Stand:
        """Restores the trainer and returns where the run stands; the start if no state was written yet.

        Raises:
            InputError: If the state is damaged.
        """
        state = read_run_state(self.path)
        if state is None:
            return Stand(Progress.at_start(), {})
        with refusing_damage(self.path):
            masters = {name: torch.empty_like(master) for name, master in policy.masters.items()}
            for name, master in masters.items():
                copy_into(master, state.tensors, f"master.{name}")
            policy.set_masters(masters)
            _restore_optimizer(policy.optimizer, state.tensors)
            return Stand(_read_progress(json.loads(state.facts["progress"]), state.tensors), state.notes)


def _read_progress(facts: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Progress:
    items, sizes, before = facts["samples"], facts["waiting"], facts["held_out_before"]
    assert isinstance(items, list) and isinstance(sizes, list)
    samples = [_read_sample(item, _routing(tensors, n)) for n, item in enumerate(items)]
    num_open, step, version = _integers([facts["num_open"], facts["step"], facts["version"]])
    waiting, start = [], num_open
    for since, size in map(_integers, sizes):
        waiting.append((since, samples[start : start + size]))
        start += size
    if start != len(samples) or step < 0:
        raise ValueError(f"{len(samples)} answers at step {step}, of which {start} are accounted for")
    return Progress(
        step=step,
        version=version,
        open_samples=samples[:num_open],
        waiting=waiting,
        held_out_before=None if before is None else list(_integers(before)),
    )


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".")
            state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    check_moments(optimizer)


def _routing(tensors: Mapping[str, Tensor], place: int) -> RoutingRecord | None:
    ids = tensors.get(f"routing.{place}.ids")
    return None if ids is None else RoutingRecord(ids_TLK=ids, weights_TLK=tensors[f"routing.{place}.weights"])


def _write_sample(sample: Sample) -> Json:
    """Returns a sample without its routing; floats round-trip."""
    task = sample.task
    return {
        "key": sample.key,
        "group": task.group,
        "family": task.family,
        "prompt": list(task.prompt),
        "answer": task.answer,
        "written": list(sample.written),
        "logprobs": list(sample.logprobs),
        "recomputed": list(sample.recomputed),
        "versions": list(sample.versions),
        "is_finished": sample.is_finished,
    }


def _read_sample(item: Mapping[str, object], routing: RoutingRecord | None) -> Sample:
    task = Task(
        group=str(item["group"]),
        family=str(item["family"]),
        prompt=_integers(item["prompt"]),
        answer=str(item["answer"]),
    )
    return Sample(
        key=str(item["key"]),
        task=task,
        written=_integers(item["written"]),
        logprobs=_numbers(item["logprobs"]),
        recomputed=_numbers(item["recomputed"]),
        versions=_integers(item["versions"]),
        is_finished=bool(item["is_finished"]),
        routing=routing,
    )


def _integers(value: object) -> tuple[int, ...]:
    assert isinstance(value, list)
    return tuple(map(int, value))


def _numbers(value: object) -> tuple[float, ...]:
    assert isinstance(value, list)
    return tuple(map(float, value))


def group_samples(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Returns the samples by group, in their order."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.task.group, []).append(sample)
    return list(groups.values())
