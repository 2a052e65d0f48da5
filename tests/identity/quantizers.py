"""Callables as users write them: right, wrong in one place, and misbehaving."""

from __future__ import annotations

import torch
from torch import Tensor

from quantaudit.numerics import QuantizedTensor, fake_quantize, get_scheme, quantize

PLANTED_ABSMAX, PLANTED_VALUE = 1.3671875, -0.2421875  # bf16 numbers
_calls = [0]


def even(x: Tensor) -> Tensor:
    """Is mxfp4-even."""
    return fake_quantize(x, get_scheme("mxfp4-even"))


def even_codes(x: Tensor) -> QuantizedTensor:
    """Is mxfp4-even, and shows its codes."""
    return quantize(x, get_scheme("mxfp4-even"))


def even_away(x: Tensor) -> Tensor:
    """Rounds ties away from zero."""
    return fake_quantize(x, get_scheme("mxfp4-even-away"))


def one_pair_off(x: Tensor) -> Tensor:
    """Is mxfp4-even but for one value in groups of one absmax."""
    groups = x.reshape(-1, 32)
    out = even(x).reshape(-1, 32)
    is_hit = (groups.abs().amax(-1, keepdim=True) == PLANTED_ABSMAX) & (groups == PLANTED_VALUE)
    return torch.where(is_hit, torch.zeros_like(out), out).reshape(x.shape)


def positive_zeros(x: Tensor) -> Tensor:
    """Is mxfp4-even but loses the sign of zero."""
    return even(x) + 0.0


def flushes_tiny(x: Tensor) -> Tensor:
    """Is mxfp4-even but for groups whose scale is not a normal number."""
    groups = x.reshape(-1, 32)
    is_tiny = groups.abs().amax(-1, keepdim=True).float() < 2.0**-125
    return torch.where(is_tiny, 0.0, even(x).reshape(-1, 32)).to(x.dtype).reshape(x.shape)


def looks_at_position(x: Tensor) -> Tensor:
    """Is mxfp4-even but for the third value of a group."""
    out = even(x).reshape(-1, 32).clone()
    out[:, 2] = 0
    return out.reshape(x.shape)


def looks_at_neighbours(x: Tensor) -> Tensor:
    """Scales by the whole row."""
    peak = x.abs().amax(-1, keepdim=True)
    return even(x / peak.clamp(min=1e-30)) * peak


def random_rounding(x: Tensor) -> Tensor:
    """Never gives the same twice."""
    _calls[0] += 1
    return even(x) * (1 + _calls[0] % 2)


def other_shape(x: Tensor) -> Tensor:
    """Returns another shape."""
    return x[:, :8]


def codes_only(x: Tensor) -> Tensor:
    """Returns codes."""
    return quantize(x, get_scheme("mxfp4-even")).codes


def nothing(x: Tensor) -> None:
    """Returns nothing."""


def raises(x: Tensor) -> Tensor:
    """Raises."""
    raise RuntimeError("no kernel for this device")


def in_place(x: Tensor) -> Tensor:
    """Changes its input."""
    return x.mul_(2)


def refuses_nan(x: Tensor) -> Tensor:
    """Is mxfp4-even, and raises where a value is not finite."""
    if not x.isfinite().all():
        raise ValueError("not finite")
    return even(x)


class OwnError(Exception):
    """What a trainer's code may raise."""


def raises_its_own(x: Tensor) -> Tensor:
    """Raises an exception of its own."""
    raise OwnError("no such kernel")


def exits(x: Tensor) -> Tensor:
    """Ends the interpreter, as if all were well."""
    raise SystemExit(0)


def on_meta(x: Tensor) -> Tensor:
    """Returns a tensor without data."""
    return torch.empty_like(x, device="meta")


def sparse(x: Tensor) -> Tensor:
    """Returns a sparse tensor."""
    return even(x).to_sparse()


def one_call_off(x: Tensor) -> Tensor:
    """Is mxfp4-even, but for one value in the first call with a large matrix."""
    out = even(x).clone()
    if x.numel() > 1 << 20:
        _calls[0] += 1
        if _calls[0] == 1:
            out.view(-1)[7] += 1
    return out
