"""A checker that is given what another one remembered finds what that one would have found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quantaudit.engines.stored import StoredTensor
from quantaudit.numerics import get_scheme
from quantaudit.training.checking.checker import StepChecker
from quantaudit.training.checking.remembered import CheckerMemory, read_memory, write_memory
from quantaudit.training.checking.sides import Shipped, Sides
from quantaudit.training.run_state import Note, read_run_state, write_run_state
from tests.training.checking.made import DENSE, NAMES, change, sides


def sources_of(checked: Sides) -> dict[str, Tensor]:
    """Returns what the trainer quantizes."""
    return {name: weight.source for name, weight in checked.trainer.items()}


def through_a_file(folder: Path, memory: CheckerMemory, checked: Sides) -> CheckerMemory:
    """Writes a memory with the state of a run and reads it again."""
    write_run_state(folder, {}, {}, {"checker": write_memory(memory)})
    state = read_run_state(folder)
    assert state is not None
    return read_memory(state.notes["checker"], sources_of(checked))


def checked_until(last: int) -> StepChecker:
    """Returns a checker after steps in which nothing was wrong."""
    checker = StepChecker()
    for step in range(last + 1):
        assert checker.check(step, sides(step)).findings == ()
    return checker


@pytest.mark.parametrize("age", [1, 2])
def test_what_was_left_behind_before_is_recognised_after(tmp_path: Path, age: int) -> None:
    checker = checked_until(3)
    earlier, now = sides(4 - age), sides(4)
    assert earlier.sent is not None
    wrong = change(now, "loaded", {NAMES[0]: earlier.sent[NAMES[0]]})
    resumed = StepChecker(memory=through_a_file(tmp_path, checker.memory, now))
    found = resumed.check(4, wrong)
    assert found.findings and found.findings == checker.check(4, wrong).findings
    assert found.findings[0].name == "tensor-not-synced" and found.findings[0].explains == 1.0
    # And what was reported before is not reported again, by either.
    again = StepChecker(memory=through_a_file(tmp_path, resumed.memory, now))
    still = change(sides(5), "loaded", {NAMES[0]: earlier.sent[NAMES[0]]})
    assert again.check(5, still).findings == checker.check(5, still).findings == ()


def test_every_bit_comes_back_and_is_written_once(tmp_path: Path) -> None:
    checker, scheme = StepChecker(), get_scheme("nvfp4")
    for step in range(3):
        passed = sides(step, scheme)
        checker.skip(step, passed.trainer, passed.sent or {})
    memory = checker.memory
    read = through_a_file(tmp_path, memory, passed)
    assert [past.step for past in read.past] == [2, 1, 0] and read.first is not None and read.first.step == 0
    assert read.last_step == 2 and read.was_on_grid == memory.was_on_grid
    assert set(read.first.shipped) == set(NAMES), "only what has a scale of the whole matrix"
    for one, other in zip(memory.past, read.past, strict=True):
        assert one.sources.keys() == other.sources.keys() and one.shipped.keys() == other.shipped.keys()
        for name, shipped in one.shipped.items():
            assert _bits(shipped) == _bits(other.shipped[name])
            assert torch.equal(one.sources[name], other.sources[name])
    # Sources, codes, scales and scales above of six stacks, and the dense weight, which is shipped as it lies; the
    # first step is still among the last ones.
    assert len(write_memory(memory).tensors) == 3 * (4 * len(NAMES) + 1)


def _bits(shipped: Shipped) -> list[bytes]:
    if isinstance(shipped, StoredTensor):
        parts = (shipped.packed, shipped.scales, shipped.second_scales, shipped.offset)
        return [shipped.scheme.digest().encode(), *(_bytes(part) for part in parts if part is not None)]
    return [_bytes(shipped)]


def _bytes(tensor: Tensor) -> bytes:
    return str(tensor.dtype).encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes()


def test_a_zero_of_another_sign_is_not_what_lies_in_the_trainer(tmp_path: Path) -> None:
    checked = sides(0)
    zero = torch.zeros(8, dtype=torch.bfloat16)
    dense = replace(checked.trainer[DENSE], values=zero, source=zero, master=zero)
    assert checked.sent is not None
    checked = replace(checked, trainer={**checked.trainer, DENSE: dense}, sent={**checked.sent, DENSE: -zero})
    checker = StepChecker()
    checker.check(0, replace(checked, loaded=None, derived=None))
    read = through_a_file(tmp_path, checker.memory, checked)
    shipped = read.past[0].shipped[DENSE]
    assert isinstance(shipped, torch.Tensor) and _bytes(shipped) == _bytes(-zero)


def test_the_memory_of_another_model_is_refused() -> None:
    checker = checked_until(0)
    note = write_memory(checker.memory)
    sources = sources_of(sides(0))
    assert read_memory(note, sources).last_step == 0
    with pytest.raises(ValueError, match="other weights than those of this model"):
        read_memory(note, sources | {"another": torch.zeros(1)})
    with pytest.raises(LookupError):
        read_memory(note, {name: source for name, source in sources.items() if name != DENSE})
    with pytest.raises(ValueError, match="cannot hold codes of shape"):
        text = json.dumps(note.head).replace('"shape": [4, ', '"shape": [4000000, ')
        read_memory(Note(json.loads(text), note.tensors), sources)
