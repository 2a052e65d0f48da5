"""What is timed is compared first, on matrices that show what random ones hide."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchmarks.speed import quantize as speed
from quantaudit.core.scheme import PerBlock, Scheme, Tie
from quantaudit.numerics import fake_quantize, get_scheme, scheme_names
from quantaudit.numerics.twins import has_twin

BOTH = (torch.float32, torch.bfloat16)


def eager(x: Tensor, scheme: Scheme, *, compile_after: int) -> Tensor:
    """Stands for compiled code, which takes seconds to make."""
    return fake_quantize(x, scheme)


def away_from_zero(x: Tensor, scheme: Scheme, *, compile_after: int) -> Tensor:
    """Rounds ties away from zero where they should go to even."""
    return fake_quantize(x, scheme.model_copy(update={"tie": Tie.AWAY}))


def without_signs_of_zero(x: Tensor, scheme: Scheme, *, compile_after: int) -> Tensor:
    """Loses the sign of zeros."""
    return fake_quantize(x, scheme) + 0.0


def without_subnormals(x: Tensor, scheme: Scheme, *, compile_after: int) -> Tensor:
    """Flushes subnormal inputs to zero, as careless compilers do."""
    return fake_quantize(torch.where(x.abs() < 2.0**-126, x * 0.0, x), scheme)


def test_every_e4m3_scheme_with_a_twin_is_timed() -> None:
    e4m3 = {n for n in scheme_names() if n.startswith(("mxfp8-e4m3", "fp8-")) and has_twin(get_scheme(n))}
    assert e4m3 <= set(speed.PREDICTED) <= set(scheme_names())
    assert all(speed.goal_of(name) is not None for name in e4m3)


@pytest.mark.parametrize("name", ["mxfp4-even", "fp8-block128", "int8-channel"])
def test_equal_bits_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "fused_fake_quantize", eager)
    speed.check_bits(speed.hard_matrices(get_scheme(name)), get_scheme(name), BOTH)


@pytest.mark.parametrize("fault", [away_from_zero, without_signs_of_zero, without_subnormals])
def test_a_fault_that_random_data_hides_is_found(fault: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = get_scheme("mxfp4-even")
    monkeypatch.setattr(speed, "fused_fake_quantize", fault)
    # Magnitudes from one on: no zeros, and a tie is a bit pattern that chance does not draw.
    random = torch.randn(256, 256, generator=torch.Generator().manual_seed(0)).mul_(1 + 2.0**-20)
    random = torch.where(random.abs() < 1, random.sign() * (1 + random.abs()), random)
    speed.check_bits({"random": random}, scheme, (torch.float32,))
    with pytest.raises(SystemExit, match="differ from the reference"):
        speed.check_bits(speed.hard_matrices(scheme), scheme, BOTH)


def test_cut_off_blocks_are_among_them() -> None:
    for name in scheme_names():
        scheme = get_scheme(name)
        shapes = [tuple(matrix.shape) for matrix in speed.hard_matrices(scheme).values()]
        assert ((200, 300) in shapes) == isinstance(scheme.granularity, PerBlock)
