"""A run in which a mismatch is planted, killed around it and resumed, writes the log of one that was not killed.

Runs are cut after a step, with a state on disk before the mismatch, at its step, or behind it. The engine is a new one
every time: what it held is a part of the mismatch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.recipe import Recipe, Rule
from quantaudit.core.serial import Json
from quantaudit.core.step_log import EventLog, Finding
from quantaudit.training.checking.injections.registry import make_faults
from quantaudit.training.rl.engine import Engine
from quantaudit.training.rl.engine_client import EngineClient
from quantaudit.training.rl.loop import Step
from quantaudit.training.rl.run import run_loop
from quantaudit.training.rl.run_folder import EVENTS_FILE
from quantaudit.training.rl.settings import RlSettings
from quantaudit.training.run_state import STATE_FILE, Note, RunState, read_run_state, write_run_state
from tests.training.rl.tiny import EXPERTS, SHORT, TINY, W4A8, in_process, request

NVFP4 = Recipe(name="nvfp4", rules=(Rule(match=EXPERTS, weight="nvfp4"),))
STEPS = 5
SETTINGS = SHORT.model_copy(update={"steps": STEPS, "transport_every": 0, "floor_every": 0, "save_every": 1})
_SECONDS = re.compile(rb'"(check_)?seconds": [-+.\de]+')


class _Killed(BaseException):
    """Ends a run where a signal would."""


def run(
    folder: Path,
    inject: str,
    *,
    recipe: Recipe = W4A8,
    settings: RlSettings = SETTINGS,
    stop_after: int | None = None,
    resume: bool = False,
    open_engine: Callable[[], Engine] = in_process,
) -> None:
    """Runs with a mismatch; ends behind a step as if killed."""

    def watch(step: Step) -> None:
        if step.record.step == stop_after:
            raise _Killed

    faults = make_faults([inject] if inject else [], seed=3)
    wanted = replace(
        request(folder, settings, faults=faults, recipe=recipe, resume=resume), inject=(inject,) if inject else ()
    )
    if stop_after is None:
        run_loop(wanted, open_engine, watch)
        return
    with pytest.raises(_Killed):
        run_loop(wanted, open_engine, watch)


def log_of(folder: Path) -> bytes:
    """Returns the log without its times."""
    return _SECONDS.sub(b"", (folder / EVENTS_FILE).read_bytes())


def findings_of(folder: Path) -> list[Finding]:
    """Returns what was found."""
    return [e for e in EventLog(folder / EVENTS_FILE).read() if isinstance(e, Finding)]


def check_resumed(tmp_path: Path, inject: str, cuts: tuple[int, ...], recipe: Recipe = W4A8) -> list[Finding]:
    """Compares a whole run with those that were cut behind these steps; returns what was found."""
    run(tmp_path / "whole", inject, recipe=recipe)
    for cut in cuts:
        run(tmp_path / f"cut{cut}", inject, recipe=recipe, stop_after=cut)
        run(tmp_path / f"cut{cut}", inject, recipe=recipe, resume=True)
        assert log_of(tmp_path / f"cut{cut}") == log_of(tmp_path / "whole"), f"cut behind step {cut}"
        assert (tmp_path / f"cut{cut}" / STATE_FILE).read_bytes() == (tmp_path / "whole" / STATE_FILE).read_bytes()
    return findings_of(tmp_path / "whole")


# What is planted, under which name it is found, and behind which steps the run is cut.
PLANTED = {
    "tensor-not-synced@2": ("tensor-not-synced", (1, 3)),
    "cache-not-flushed@2": ("cache-not-flushed", (1, 3)),
    "previous-step@2:for=2": ("previous-step", (1, 2)),
    "stale@3": ("stale", (2, 3)),
    "layer-set-pattern@2": ("skipped-layer", (1, 2)),
    "checkpoint-round-trip@2": ("quantized-twice", (1, 2)),
    "layout-not-rebuilt@2": ("layout-not-rebuilt", (1, 3)),
    "layout-scales-kept@2:for=2": ("scales-not-refreshed", (1, 2)),
    "scales-not-refreshed@2": ("scales-not-refreshed", (1, 3)),
    "bucket-lost@2:for=2": ("scales-not-refreshed", (1, 2)),
    "another-rule@2": ("another-rule", (1, 2)),
    "placement-change@2": ("placement-change", (1, 3)),
    "cache-not-flushed@2:part=kda": ("cache-not-flushed", (2,)),
    "state-precision@2:for=2": ("state-precision", (1, 2)),
}
QUICK = ("tensor-not-synced@2", "cache-not-flushed@2")


@pytest.mark.parametrize("inject", [i if i in QUICK else pytest.param(i, marks=pytest.mark.slow) for i in PLANTED])
def test_a_killed_run_with_a_mismatch_goes_on_to_the_same_log(tmp_path: Path, inject: str) -> None:
    name, cuts = PLANTED[inject]
    found = check_resumed(tmp_path, inject, cuts)
    assert found and found[0].name == name, found


@pytest.mark.slow
def test_the_scale_of_the_first_step_is_still_known(tmp_path: Path) -> None:
    found = check_resumed(tmp_path, "frozen-global-scale@4", (2,), NVFP4)
    assert [(f.name, f.step, f.explains) for f in found] == [("frozen-global-scale", 4, 1.0)]


@pytest.mark.slow
def test_an_engine_in_another_process_is_put_in_the_place_of_one_that_was_killed(tmp_path: Path) -> None:
    def client() -> Engine:
        return EngineClient(TINY, timeout_seconds=120.0)

    inject = "cache-not-flushed@1"
    settings = SETTINGS.model_copy(update={"steps": 4, "save_every": 2})
    run(tmp_path / "whole", inject, settings=settings, open_engine=client)
    run(tmp_path / "cut", inject, settings=settings, open_engine=client, stop_after=2)
    run(tmp_path / "cut", inject, settings=settings, open_engine=client, resume=True)
    assert log_of(tmp_path / "cut") == log_of(tmp_path / "whole")
    assert findings_of(tmp_path / "cut")


def test_only_what_a_planted_mismatch_needs_is_written(tmp_path: Path) -> None:
    short = SETTINGS.model_copy(update={"steps": 2})
    sizes = {}
    for inject in ("", "router-precision@0", "cache-not-flushed@0"):
        folder = tmp_path / (inject or "honest")
        run(folder, inject, settings=short)
        state = read_run_state(folder)
        assert state is not None
        sizes[inject] = {part: len(note.tensors) for part, note in state.notes.items()}
    assert sizes[""].keys() == {"checker"}
    assert sizes["router-precision@0"].keys() == {"checker", "faults", "engine"}
    assert sizes["cache-not-flushed@0"]["engine"] > sizes["router-precision@0"]["engine"], "prefixes that stay"


def _longer(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.cat([tensor, tensor]) if tensor.ndim else tensor for name, tensor in tensors.items()}


def _without_one(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return dict(list(tensors.items())[1:])


DAMAGE: dict[str, Callable[[RunState], RunState]] = {
    "the checker's weights are longer": lambda s: _changed_note(s, "checker", tensors=_longer),
    "a weight is missing": lambda s: _changed_note(s, "checker", tensors=_without_one),
    "packed bytes are of another dtype": lambda s: _changed_note(s, "checker", tensors=_as_floats),
    "the checker's note is empty": lambda s: _changed_note(s, "checker", head={}),
    "the checker claims a huge shape": lambda s: _changed_note(s, "checker", head=_huge(s.notes["checker"].head)),
    "another number was planted": lambda s: _changed_note(s, "faults", head={"kept": []}),
    "what is kept is no object": lambda s: _changed_note(s, "faults", head={"kept": [3]}),
    "the engine's note has no entries": lambda s: _changed_note(s, "engine", head={}),
    "the engine lacks a weight": lambda s: _changed_note(s, "engine", tensors=_without_one),
    "a master is shorter": lambda s: s._replace(tensors=_first_halved(s.tensors, "master.")),
    "a moment is shorter": lambda s: s._replace(tensors=_first_halved(s.tensors, "optimizer.")),
    "progress is no object": lambda s: s._replace(facts={"progress": "[1, 2]"}),
    "progress is missing": lambda s: s._replace(facts={}),
}


def _changed_note(
    state: RunState,
    part: str,
    *,
    head: Mapping[str, Json] | None = None,
    tensors: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict,
) -> RunState:
    note = state.notes[part]
    changed = Note(note.head if head is None else head, tensors(dict(note.tensors)))
    return state._replace(notes={**state.notes, part: changed})


def _as_floats(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.float() if t.dtype is torch.uint8 else t for name, t in tensors.items()}


def _huge(head: Mapping[str, Json]) -> dict[str, Json]:
    text = json.dumps(head)
    assert '"shape": [8, ' in text
    changed: dict[str, Json] = json.loads(text.replace('"shape": [8, ', '"shape": [8000000, '))
    return changed


def _first_halved(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    first = next(name for name, tensor in tensors.items() if name.startswith(prefix) and tensor.ndim)
    return tensors | {first: tensors[first][: len(tensors[first]) // 2]}


def test_a_damaged_state_is_refused_in_a_sentence(tmp_path: Path) -> None:
    inject = "stale@1"
    short = SETTINGS.model_copy(update={"steps": 2})
    run(tmp_path, inject, settings=short)
    whole = read_run_state(tmp_path)
    assert whole is not None
    for what, damage in DAMAGE.items():
        write_run_state(tmp_path, *damage(whole))
        with pytest.raises(InputError, match=r"run.safetensors, which is damaged .*; remove it to start again"):
            run(tmp_path, inject, settings=short, resume=True)
            raise AssertionError(what)


def test_a_log_that_lacks_a_step_of_the_state_is_refused(tmp_path: Path) -> None:
    short = SETTINGS.model_copy(update={"steps": 2})
    run(tmp_path, "", settings=short)
    log = tmp_path / EVENTS_FILE
    log.write_bytes(b"".join(line for line in log.read_bytes().splitlines(keepends=True) if b'"step": 0,' not in line))
    with pytest.raises(InputError, match="1 steps before step 2"):
        run(tmp_path, "", settings=short, resume=True)


def test_a_state_without_notes_goes_on(tmp_path: Path) -> None:
    short = SETTINGS.model_copy(update={"steps": 2})
    run(tmp_path, "", settings=short)
    state = read_run_state(tmp_path)
    assert state is not None
    write_run_state(tmp_path, state.tensors, state.facts)
    run(tmp_path, "", settings=short.model_copy(update={"steps": 3}), resume=True)
    assert b'"verdict": "clean"' in log_of(tmp_path)
