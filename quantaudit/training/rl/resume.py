"""What a run remembers beside weights and answers, and how a resumed run is given it back.

    checker     the last steps, what parts already, what was found already
    faults      what planted mismatches keep of earlier steps
    engine      what the engine holds, where a mismatch is planted; else the next sync brings all of it anew
    replayer    nothing of its own: the checker's last steps are shown to it again

All of it is written with the weights, whole or not at all, and checked when it is read. A state of an earlier version
holds none of it: such a run goes on, and a mismatch that began before is diagnosed from what comes after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from quantaudit.training.checking.checker import StepChecker
from quantaudit.training.checking.remembered import CheckerMemory, read_memory, write_memory
from quantaudit.training.rl.engine import Engine
from quantaudit.training.rl.faults import Faults, Flush
from quantaudit.training.rl.kept_engine import Keeping, read_engine, write_engine
from quantaudit.training.rl.policy import Policy
from quantaudit.training.rl.replay import Replayer
from quantaudit.training.rl.wire import Message
from quantaudit.training.run_state import Note, refusing_damage

_CHECKER, _FAULTS, _ENGINE = "checker", "faults", "engine"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recalled:
    """What a resumed run goes on with.

    Attributes:
        checker: What the checker remembers.
        engine: What the engine held; `None` where it is loaded anew.
    """

    checker: CheckerMemory
    engine: Message | None


def write_checker(memory: CheckerMemory) -> dict[str, Note]:
    """Returns the note of a run in which nothing is planted."""
    return {_CHECKER: write_memory(memory)}


def write_all(checker: StepChecker, faults: Faults, engine: Engine, next_step: int) -> dict[str, Note]:
    """Returns the notes of a run between two steps.

    Args:
        checker: Of the run.
        faults: What is planted.
        engine: The engine, awake or asleep.
        next_step: What it remembers of prefixes is written only where the sync of this step leaves a part of it.
    """
    notes = write_checker(checker.memory)
    if faults.is_honest:
        return notes
    notes[_FAULTS] = faults.written()
    if isinstance(engine, Keeping):
        outlives = not faults.flush(next_step, Flush()).is_complete
        notes[_ENGINE] = Note(*engine.checkpoint(with_memory=outlives))
    return notes


def recall(folder: Path, notes: Mapping[str, Note], policy: Policy, faults: Faults) -> Recalled:
    """Reads the notes of a run, and gives planted mismatches what they kept.

    Raises:
        InputError: If they are damaged.
    """
    checker, held = CheckerMemory(), None
    with refusing_damage(folder):
        if _CHECKER in notes:
            checker = read_memory(notes[_CHECKER], sources_of(policy))
        if _FAULTS in notes:
            faults.recall(notes[_FAULTS], policy.exported())
        if _ENGINE in notes:
            held = write_engine(*read_engine(Message(dict(notes[_ENGINE].head), dict(notes[_ENGINE].tensors))))
    return Recalled(checker=checker, engine=held)


def sources_of(policy: Policy) -> dict[str, Tensor]:
    """Returns what the trainer quantizes or sends as it is: expert stacks by module name, others by parameter name."""
    return policy.exported() | policy.dense()


@torch.no_grad()
def show_past(policy: Policy, memory: CheckerMemory, replayer: Replayer) -> None:
    """Shows a replayer the weights of the last syncs, oldest first; each stands in the trainer for a moment."""
    now = {name: master.detach().clone() for name, master in policy.masters.items()}
    for past in reversed(memory.past):
        for name, master in (policy.masters | policy.expert_masters()).items():
            if name in past.sources:
                master.detach().copy_(past.sources[name])
        policy.set_masters(policy.masters)
        replayer.take(policy)
    policy.set_masters(now)
