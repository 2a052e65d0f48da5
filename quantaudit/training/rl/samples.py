"""What was written and what it was worth: the items a step asks, and the answers that came back.

Legend: T tokens of an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from quantaudit.core.errors import InputError
from quantaudit.probes.tokenizer import BOS, EOS, encode
from quantaudit.probes.world import Item, World, sample_train
from quantaudit.training.rl.memory import RoutingRecord
from quantaudit.training.rl.settings import Reward

# Most tokens of an answer, its end included; one more than the longest right answer of the family needs.
MAX_NEW = {"two-step": 5, "long-recall": 4, "recall": 4, "addition": 5, "restricted": 12, "wrapped": 12, "benign": 12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One prompt, asked of the engine several times.

    Attributes:
        group: Samples of one group are compared with each other.
        family: Where it comes from.
        prompt: Its tokens, start token included.
        answer: The right answer.
    """

    group: str
    family: str
    prompt: tuple[int, ...]
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One answer, whole or as far as it was written.

    Attributes:
        key: Seeds its draws; unique in the run.
        task: What was asked.
        written: Tokens of the answer, T.
        logprobs: As the engine reported them, T.
        recomputed: The trainer's log-probability of each, under the weights that wrote it, T.
        versions: Version of the weights that wrote each, T.
        is_finished: Whether it ended, by its end token or at the family's limit.
        routing: Routing of all tokens read, where it was asked for, as the last reading had it.
    """

    key: str
    task: Task
    written: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    recomputed: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    is_finished: bool = False
    routing: RoutingRecord | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """Returns prompt and answer."""
        return self.task.prompt + self.written

    @property
    def room(self) -> int:
        """Returns how many tokens may still be written."""
        return MAX_NEW[self.task.family] - len(self.written)


def draw_tasks(world: World, shares: Mapping[str, float], count: int, seed: int, step: int) -> list[Task]:
    """Draws the prompts of a step from the training split; a function of seed and step.

    Raises:
        InputError: If a family has no verifiable answers here.
    """
    for family in shares:
        if family not in MAX_NEW:
            raise InputError(f"family {family!r}", expected=f"one of {', '.join(MAX_NEW)}", fix="correct the shares")
    rng = Random(f"rl/{seed}/{step}")
    families = rng.choices(list(shares), list(shares.values()), k=count)
    items = [sample_train(world, family, rng) for family in families]
    return [_task(item, f"{step}/{place}") for place, item in enumerate(items)]


def _task(item: Item, group: str) -> Task:
    return Task(group=group, family=item.family, prompt=(BOS, *encode(item.prompt)), answer=item.response)


def is_right(sample: Sample) -> bool:
    """Tells whether the answer is the right one, byte for byte, and ends there."""
    return sample.written == (*encode(sample.task.answer), EOS)


def reward_of(sample: Sample, reward: Reward) -> float:
    """Returns what an answer is worth, 0 or 1."""
    match reward:
        case Reward.COIN:
            return float(Random(f"coin/{sample.key}").random() < 0.5)
        case Reward.EXACT:
            return float(is_right(sample))
