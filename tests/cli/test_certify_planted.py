"""A user's callable that is wrong in one place is told from its scheme in bf16, and the place is shown.

Only a few statistics are tried here, the planted ones among them; slow tests try all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from quantaudit.identity import levels
from quantaudit.identity.domain import BF16_INPUT, Block, InputNumbers, ladder_block
from quantaudit.numerics import fake_quantize, get_scheme
from tests.cli.command import Command
from tests.identity.quantizers import PLANTED_ABSMAX, PLANTED_VALUE

EVEN, FLOOR = get_scheme("mxfp4-even"), get_scheme("mxfp4-floor")
MINE = "tests.cli.test_certify_planted"
SIZE = 32
SUBNORMAL_RANK = 37
SUBNORMAL = SUBNORMAL_RANK * 2.0**-133  # exactly, in bf16


def grouped(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns groups, what mxfp4-even makes of them, and their absolute maxima."""
    groups = x.reshape(-1, SIZE)
    return groups, fake_quantize(x, EVEN).reshape(-1, SIZE), groups.abs().amax(1, keepdim=True)


def negative_zero_is_half(x: Tensor) -> Tensor:
    """Is wrong for -0 in groups of absmax 3, and right for +0."""
    groups, out, absmax = grouped(x)
    is_hit = (groups == 0) & groups.signbit() & (absmax == 3.0)
    return torch.where(is_hit, 0.5, out).to(x.dtype).reshape(x.shape)


def one_subnormal_absmax(x: Tensor) -> Tensor:
    """Is wrong under one absmax, which is subnormal."""
    _, out, absmax = grouped(x)
    return torch.where(absmax.float() == SUBNORMAL, 0.0, out).to(x.dtype).reshape(x.shape)


def last_position(x: Tensor) -> Tensor:
    """Forgets the last value of every group."""
    _, out, _ = grouped(x)
    return torch.cat([out[:, :-1], torch.zeros_like(out[:, -1:])], dim=1).reshape(x.shape)


def last_position_of_one_value(x: Tensor) -> Tensor:
    """Is wrong for a magnitude of 1.25 at the last position of a group."""
    groups, out, _ = grouped(x)
    last = torch.where(groups[:, -1:].abs() == 1.25, 0.0, out[:, -1:]).to(x.dtype)
    return torch.cat([out[:, :-1], last], dim=1).reshape(x.shape)


def last_expert(x: Tensor) -> Tensor:
    """Quantizes the last matrix of a stack by another rule."""
    if x.ndim == 2:
        return fake_quantize(x, EVEN)
    return torch.cat([fake_quantize(x[:-1], EVEN), fake_quantize(x[-1:], FLOOR)])


def two_maxima(x: Tensor) -> Tensor:
    """Takes the other scale for groups that hold their absmax twice."""
    groups, out, absmax = grouped(x)
    is_double = (groups.abs() == absmax).sum(1, keepdim=True) == 2
    return torch.where(is_double, fake_quantize(x, FLOOR).reshape(-1, SIZE), out).reshape(x.shape)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `certify` try a few statistics of bf16, with every value."""

    def blocks(inputs: InputNumbers, *, is_negative: bool, multiple: int) -> Iterator[Block]:
        wanted = (PLANTED_ABSMAX, 3.0)
        planted = [SUBNORMAL_RANK, *(int(torch.tensor(x).bfloat16().view(torch.int16)) for x in wanted)]
        for rank in planted:
            ranks = torch.arange(rank - 2, rank + 3)
            yield ladder_block(ranks, inputs, is_negative=is_negative, multiple=multiple)

    monkeypatch.setattr(levels, "ladder_blocks", blocks)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("function", "shown"),
    [
        ("negative_zero_is_half", "-0 (0x8000) in a group of absmax 3 (0x4040)"),
        ("one_subnormal_absmax", f"in a group of absmax 3.39791336e-39 (0x{SUBNORMAL_RANK:04x})"),
        ("last_position", "A value gives the same wherever it stands in its group."),
    ],
)
def test_a_departure_is_different_and_shown(quantaudit: Command, function: str, shown: str) -> None:
    ended = quantaudit("certify", "mxfp4-even", f"{MINE}:{function}", "--threads", "1")
    assert ended.code == 3
    assert shown in " ".join(ended.out.split())


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("function", "premise"),
    [
        ("last_position_of_one_value", "A value gives the same wherever it stands in its group."),
        ("last_expert", "A matrix gives the same in a stack of experts as alone. expert 4 of 4 does not"),
        ("two_maxima", "A value gives the same if the largest value is there twice."),
    ],
)
def test_what_no_pair_shows_fails_a_premise_and_is_not_identical(
    quantaudit: Command, function: str, premise: str
) -> None:
    ended = quantaudit("certify", "mxfp4-even", f"{MINE}:{function}", "--threads", "1")
    assert ended.code in (3, 4)
    assert "fails" in ended.out
    assert premise in " ".join(ended.out.split())


@pytest.mark.usefixtures("few")
def test_a_callable_without_a_fault_is_identical(quantaudit: Command) -> None:
    ended = quantaudit("certify", "mxfp4-even", "tests.identity.quantizers:even", "--threads", "1")
    assert (ended.code, "fails" in ended.out) == (0, False)


@pytest.mark.slow
def test_one_pair_among_all_of_bf16_is_shown(quantaudit: Command) -> None:
    ended = quantaudit("certify", "mxfp4-even", "tests.identity.quantizers:one_pair_off", "--threads", "1")
    assert ended.code == 3
    assert "1 values differ" in ended.out
    assert f"{PLANTED_VALUE} (0xbe78) in a group of absmax {PLANTED_ABSMAX} (0x3faf)" in ended.out


def test_the_planted_subnormal_is_a_number_of_bf16() -> None:
    assert float(BF16_INPUT.numbers(torch.tensor(SUBNORMAL_RANK))) == SUBNORMAL
