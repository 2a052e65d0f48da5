"""What an answer is worth: all or nothing, or a coin."""

from __future__ import annotations

import pytest

from quantaudit.probes.tokenizer import EOS, encode
from quantaudit.training.rl.learning import drop_even_groups
from quantaudit.training.rl.samples import Sample, Task, reward_of
from quantaudit.training.rl.settings import Reward
from tests.training.rl.tiny import SHORT

RIGHT = "123"


def answered(text: str, *, ends: bool = True, key: str = "0") -> Sample:
    """Returns an answer to a prompt whose right answer is 123."""
    task = Task(group="0", family="two-step", prompt=(1,), answer=RIGHT)
    return Sample(key=key, task=task, written=(*encode(text), *((EOS,) if ends else ())), is_finished=True)


@pytest.mark.parametrize(
    ("text", "ends", "worth"),
    [
        ("123", True, 1.0),
        ("123", False, 0.0),
        ("1234", True, 0.0),
        ("12", True, 0.0),
        ("923", True, 0.0),
        ("", True, 0.0),
    ],
)
def test_only_the_right_answer_is_worth_something_and_only_if_it_ends(text: str, ends: bool, worth: float) -> None:
    assert reward_of(answered(text, ends=ends), Reward.EXACT) == worth


def test_a_coin_is_the_same_for_the_same_answer_and_falls_on_both_sides() -> None:
    worth = [reward_of(answered("", key=str(n)), Reward.COIN) for n in range(64)]
    assert worth == [reward_of(answered("9", key=str(n)), Reward.COIN) for n in range(64)]
    assert set(worth) == {0.0, 1.0}


def test_a_group_of_equal_worth_teaches_nothing_and_is_left_out() -> None:
    wrong, right = answered("923", key="a"), answered("123", key="b")
    settings = SHORT.model_copy(update={"reward": Reward.EXACT})
    assert drop_even_groups([wrong, wrong], settings) == []
    assert drop_even_groups([right, right], settings) == []
    assert drop_even_groups([wrong, right], settings) == [wrong, right]
