"""The check of the transport: overwrite what an engine holds with noise, sync again, and see what does not come back.

Without it, a tensor that no sync ever reaches looks right for as long as it happens not to change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from quantaudit.training.rl.derived import DerivedLayout
from quantaudit.training.rl.loaded import LoadedWeight
from quantaudit.training.rl.state import Key

Held: TypeAlias = LoadedWeight | DerivedLayout


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Randomised:
    """The engine's weights after it, and how many tensors they are."""

    loaded: dict[Key, LoadedWeight]
    derived: dict[tuple[str, int], DerivedLayout]
    num_tensors: int


def randomise_state(
    loaded: Mapping[Key, LoadedWeight], derived: Mapping[tuple[str, int], DerivedLayout], seed: int
) -> Randomised:
    """Returns the same shapes and dtypes filled with seeded noise."""
    generator = torch.Generator().manual_seed(seed)
    noisy = {
        key: replace(weight, fields={field: _noise(t, generator) for field, t in weight.fields.items()})
        for key, weight in loaded.items()
    }
    layouts = {
        key: replace(
            layout,
            tiles=_noise(layout.tiles, generator),
            above={field: _noise(t, generator) for field, t in layout.above.items()},
        )
        for key, layout in derived.items()
    }
    count = sum(len(w.fields) for w in loaded.values()) + sum(1 + len(d.above) for d in derived.values())
    return Randomised(loaded=noisy, derived=layouts, num_tensors=count)


def _noise(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if tensor.is_floating_point():
        return torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
    low, high = (0, 256) if tensor.dtype is torch.uint8 else (-128, 128)
    return torch.randint(low, high, tensor.shape, generator=generator).to(tensor.dtype)


def name_weights(
    loaded: Mapping[Key, LoadedWeight], derived: Mapping[tuple[str, int], DerivedLayout]
) -> dict[str, Held]:
    """Returns everything that an engine holds, under the names that reports use."""
    named: dict[str, Held] = {
        " ".join(("loaded", key.name, *([key.part, f"shard {key.shard}"] if key.part else []))): weight
        for key, weight in loaded.items()
    }
    return named | {f"derived {name} shard {shard}": layout for (name, shard), layout in derived.items()}


def differing(held: Mapping[str, Held], now: Mapping[str, Held]) -> tuple[str, ...]:
    """Returns the names of weights whose bits differ, or that are on one side only."""
    return tuple(
        name
        for name in dict.fromkeys([*held, *now])
        if name not in held or name not in now or not _is_equal(_tensors(held[name]), _tensors(now[name]))
    )


def _tensors(weight: Held) -> dict[str, Tensor]:
    if isinstance(weight, LoadedWeight):
        return {str(field): t for field, t in weight.fields.items()}
    return {"tiles": weight.tiles, **{str(field): t for field, t in weight.above.items()}}


def _is_equal(held: dict[str, Tensor], now: dict[str, Tensor]) -> bool:
    return held.keys() == now.keys() and all(
        held[name].dtype == now[name].dtype and torch.equal(_bits(held[name]), _bits(now[name])) for name in held
    )


def _bits(tensor: Tensor) -> Tensor:
    """Returns the bytes, so that a NaN equals itself."""
    return tensor.contiguous().view(torch.uint8) if tensor.ndim else tensor
