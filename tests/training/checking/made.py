"""Sides of a made-up model: two layers of four experts, quantized honestly, to be damaged by tests.

Legend: E experts, O out, I in.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from quantaudit.core.scheme import Scheme
from quantaudit.engines.stored import StoredTensor, quantize_stack
from quantaudit.numerics import fake_quantize, get_scheme
from quantaudit.training.checking.sides import Shipped, Sides, TrainedWeight

EVEN = get_scheme("mxfp4-even")
EXPERTS, OUT, IN = 4, 32, 64
NAMES = tuple(f"layers.{layer}.experts.{role}" for layer in (1, 2) for role in ("w1", "w2", "w3"))
DENSE = "model.norm.weight"


def masters(version: int) -> dict[str, Tensor]:
    """Returns fp32 masters after so many updates, each of which moves them by a tenth of their size."""
    generator = torch.Generator().manual_seed(0)
    held = {name: torch.randn(EXPERTS, *_shape(name), generator=generator) for name in NAMES}
    for _ in range(version):
        held = {name: m + 0.1 * torch.randn(m.shape, generator=generator) for name, m in held.items()}
    return held


def _shape(name: str) -> tuple[int, int]:
    return (IN, OUT) if name.endswith("w2") else (OUT, IN)


def sides(version: int = 0, scheme: Scheme = EVEN, *, step_version: int | None = None) -> Sides:
    """Returns sides that agree, of one version; a dense weight is among them."""
    trainer = {}
    for name, master in masters(version).items():
        source = master.to(torch.bfloat16)
        values = fake_quantize(source, scheme).float()
        trainer[name] = TrainedWeight(values=values, scheme=scheme, source=source, master=master)
    dense = torch.linspace(0.5, 1.5, 8, dtype=torch.bfloat16) + version
    trainer[DENSE] = TrainedWeight(values=dense, scheme=None, source=dense, master=dense, is_stack=False)
    sent: dict[str, Shipped] = {name: quantize_stack(trainer[name].source, scheme) for name in NAMES}
    return Sides(
        trainer=trainer,
        sent={**sent, DENSE: dense},
        loaded={**sent, DENSE: dense.clone()},
        derived=dict(sent),
        trainer_version=version,
        served_version=version if step_version is None else step_version,
    )


def stored(sides: Sides, name: str) -> StoredTensor:
    """Returns what was sent of an expert stack."""
    assert sides.sent is not None
    weight = sides.sent[name]
    assert isinstance(weight, StoredTensor)
    return weight


def change(sides: Sides, side: str, changed: dict[str, Shipped]) -> Sides:
    """Returns the sides with some weights changed on one side, and on those behind it."""
    order = ("sent", "loaded", "derived")
    assert sides.sent is not None and sides.loaded is not None and sides.derived is not None
    place = order.index(side)
    behind = {name: weight for name, weight in changed.items() if name in sides.derived}
    return replace(
        sides,
        sent={**sides.sent, **changed} if place == 0 else sides.sent,
        loaded={**sides.loaded, **changed} if place <= 1 else sides.loaded,
        derived={**sides.derived, **behind},
    )


def flip_code(weight: StoredTensor, expert: int, row: int, byte: int) -> StoredTensor:
    """Returns a weight in which one code is another."""
    packed = weight.packed.clone()
    packed[expert, row, byte] ^= 0x01
    return replace(weight, packed=packed)
