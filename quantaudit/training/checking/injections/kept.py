"""What an injection keeps from one step to the next, in a form that the state of a run can hold.

Whatever is chosen at random is kept once it is chosen, so a resumed run need not know how many draws were made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue
from torch import Tensor

from quantaudit.core.serial import Frozen
from quantaudit.training.run_state import Note


class _KeptHead(Frozen):
    words: dict[str, tuple[str, ...]] = {}
    numbers: dict[str, tuple[int, ...]] = {}
    late: tuple[dict[str, JsonValue], ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class Kept:
    """The memory of one injection; keys are its own.

    Attributes:
        words: Names that it has chosen or seen.
        numbers: Numbers that it has drawn.
        tensors: Weights of the first step.
        late: What it keeps of the last steps, newest first.
    """

    words: dict[str, tuple[str, ...]] = field(default_factory=dict)
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    late: list[Note] = field(default_factory=list)

    def choose(self, key: str, make: Callable[[], Sequence[str]]) -> tuple[str, ...]:
        """Returns the names that were chosen under a key; they are made when they are first asked for."""
        if key not in self.words:
            self.words[key] = tuple(make())
        return self.words[key]

    def draw(self, key: str, make: Callable[[], Sequence[int]]) -> tuple[int, ...]:
        """Returns the numbers that were drawn under a key; they are made when they are first asked for."""
        if key not in self.numbers:
            self.numbers[key] = tuple(make())
        return self.numbers[key]

    def is_first(self) -> bool:
        """Tells, once, that nobody has asked before."""
        is_first = "asked" not in self.numbers
        self.numbers["asked"] = (1,)
        return is_first

    def push(self, note: Note, most: int) -> None:
        """Keeps something of this step, and of the last `most` steps in all."""
        self.late = [note, *self.late][:most]

    def written(self) -> Note:
        """Returns all of it."""
        heads = tuple(dict(note.head) for note in self.late)
        head = _KeptHead(words=dict(self.words), numbers=dict(self.numbers), late=heads)
        tensors = {f"first/{name}": tensor for name, tensor in self.tensors.items()}
        for place, note in enumerate(self.late):
            tensors |= {f"late/{place}/{name}": tensor for name, tensor in note.tensors.items()}
        return Note(json.loads(head.model_dump_json()), tensors)

    def recall(self, note: Note) -> None:
        """Goes back to what was written.

        Raises:
            ValueError: If it has another form.
        """
        head = _KeptHead.model_validate(note.head)
        self.words, self.numbers = dict(head.words), dict(head.numbers)
        self.tensors = note.under("first/")
        self.late = [Note(one, note.under(f"late/{place}/")) for place, one in enumerate(head.late)]
