"""A random checkpoint of asymmetric shapes, and every fault planted in it by hand, not by the code under test.

Each planting says in plain loops what a careless exporter or loader does. The honest parts - quantize, pack, unpack -
are the package's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from quantaudit.core.format import FloatFormat, IntegerFormat
from quantaudit.core.scheme import ExponentScale, Layout, LinearScale, PerGroup, Scheme
from quantaudit.identity.mismatches.protocol import Layer, Projection, Weight
from quantaudit.identity.mismatches.weights import plain_weight, quantize_weight
from quantaudit.numerics import dequantize, fake_quantize, get_scheme, pack, unpack

NUM_EXPERTS = 3
SHAPES = {Projection.GATE: (40, 96), Projection.UP: (40, 96), Projection.DOWN: (72, 160)}
NUM_EARLIER = 2
Plant = Callable[[Layer], Layer | None]


def random_masters(seed: int = 7) -> dict[Projection, list[Tensor]]:
    """Returns the masters of every projection, newest first, each some updates of one per cent apart."""
    generator = torch.Generator().manual_seed(seed)
    masters = {}
    for projection, (rows, cols) in SHAPES.items():
        scale = torch.randn(NUM_EXPERTS, rows, 1, generator=generator).exp()
        history = [torch.randn(NUM_EXPERTS, rows, cols, generator=generator) * scale]
        for _ in range(NUM_EARLIER):
            history.append(history[-1] + 0.1 * torch.randn(history[-1].shape, generator=generator) * scale)
        masters[projection] = history
    return masters


def trained(scheme: Scheme, dtype: torch.dtype = torch.float32) -> Layer:
    """Returns the trainer's side of the random checkpoint, all of it quantized."""
    return {
        projection: quantize_weight(new, scheme, dtype=dtype, earlier=tuple(old))
        for projection, (new, *old) in random_masters().items()
    }


def untouched(scheme: Scheme) -> Layer:
    """Returns the trainer's side where nothing is quantized, the scheme being what other layers have."""
    return {name: plain_weight(history[0], scheme=scheme) for name, history in random_masters().items()}


def each(change: Callable[[Weight], Tensor | None]) -> Plant:
    """Makes a planting of what happens to one weight: its served values, `None` where it cannot happen."""

    def plant(layer: Layer) -> Layer | None:
        changed = {name: change(weight) for name, weight in layer.items()}
        if all(values is None for values in changed.values()):
            return None
        return {name: Weight(values=layer[name].values if v is None else v) for name, v in changed.items()}

    return plant


def _known(weight: Weight) -> tuple[Tensor, Tensor, Scheme]:
    assert weight.quantized is not None and weight.scheme is not None and weight.master is not None
    return weight.master, weight.quantized.codes, weight.scheme


def decoded(weight: Weight, codes: Tensor | None = None, scales: Tensor | None = None) -> Tensor:
    """Returns the values under other codes or scales."""
    stored = weight.quantized
    assert stored is not None
    return dequantize(
        replace(
            stored,
            codes=stored.codes if codes is None else codes,
            scales=stored.scales if scales is None else scales,
        )
    )


def read_nibbles_wrongly(weight: Weight) -> Tensor | None:
    """Writes with one nibble order, reads with the other."""
    _, codes, scheme = _known(weight)
    if scheme.element.bits != 4:
        return None
    packed = pack(codes, Layout.LOW_NIBBLE_FIRST)
    return decoded(weight, codes=unpack(packed, Layout.HIGH_NIBBLE_FIRST, dtype=codes.dtype))


def read_split_as_pairs(weight: Weight) -> Tensor | None:
    """Writes ggml's blocks, reads neighbours."""
    _, codes, scheme = _known(weight)
    if scheme.element.bits != 4:
        return None
    plain = (codes.to(torch.int16) & 15).to(torch.uint8)
    wrong = unpack(pack(plain, Layout.GGML_SPLIT), Layout.LOW_NIBBLE_FIRST)
    if isinstance(scheme.element, IntegerFormat):
        wrong = wrong.to(torch.int8)
        wrong = torch.where(wrong > 7, wrong - 16, wrong)
    return decoded(weight, codes=wrong)


def read_pairs_as_even_first(weight: Weight) -> Tensor | None:
    """Writes words of eight codes in order, reads the even places first."""
    _, codes, scheme = _known(weight)
    if scheme.element.bits != 4:
        return None
    wrong = codes.clone()
    for place, source in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        wrong[..., place::8] = codes[..., source::8]
    return decoded(weight, codes=wrong)


def exchange_axes(weight: Weight) -> Tensor:
    """Serves [E, C, R]."""
    return torch.stack([expert.t() for expert in weight.values]).contiguous()


def keep_shape_of_transpose(weight: Weight) -> Tensor:
    """Serves the memory of the transpose under the old shape."""
    return torch.stack([expert.t().flatten() for expert in weight.values]).reshape(weight.values.shape)


def transpose_scales(weight: Weight) -> Tensor | None:
    """Stores the scales column by column, reads them row by row."""
    assert weight.quantized is not None
    grid = weight.quantized.scales
    columns = [torch.cat([expert[:, g] for g in range(grid.shape[-1])]) for expert in grid]
    return decoded(weight, scales=torch.stack(columns).reshape(grid.shape))


def write_bias_twice(weight: Weight) -> Tensor | None:
    """Adds 127 to bytes that are biased, in arithmetic modulo 256."""
    assert weight.quantized is not None and weight.scheme is not None
    if not isinstance(weight.scheme.scale, ExponentScale):
        return None
    return decoded(weight, scales=weight.quantized.scales + 127)


def read_bias_twice(weight: Weight) -> Tensor | None:
    """Takes 127 off twice, in float64."""
    assert weight.scheme is not None
    if not isinstance(weight.scheme.scale, ExponentScale):
        return None
    return (weight.values.double() * 2.0**-127).float()


def read_zero_of_seven(weight: Weight) -> Tensor | None:
    """Stores codes + 8, reads them less 7."""
    _, codes, scheme = _known(weight)
    if not isinstance(scheme.element, IntegerFormat) or not isinstance(scheme.granularity, PerGroup):
        return None
    assert weight.quantized is not None
    wrong = (codes.float() + 8) - 7
    return wrong * weight.quantized.scales.repeat_interleave(scheme.granularity.size, -1)


def take_exponent_of_ratio(weight: Weight) -> Tensor | None:
    """Divides by 2^floor(log2(absmax / largest)) and looks the quotient up in the table of the format."""
    master, _, scheme = _known(weight)
    if not isinstance(scheme.scale, ExponentScale) or not isinstance(scheme.element, FloatFormat):
        return None
    groups = master.double().reshape(-1, 32)
    scale = 2.0 ** (groups.abs().amax(-1, keepdim=True) / scheme.element.max).log2().floor()
    return (nearest(groups / scale, scheme.element) * scale).float().reshape(master.shape)


def nearest(x: Tensor, element: FloatFormat) -> Tensor:
    """Returns the nearest numbers of a format, ties to even codes, float64."""
    table = torch.tensor([element.value_of(code) for code in range(element.max_code + 1)], dtype=torch.float64)
    middle = (table[1:] + table[:-1]) / 2
    place = torch.bucketize(x.abs(), middle)
    is_tie = x.abs() == middle[place.clamp(max=len(middle) - 1)]
    return table[torch.where(is_tie & (place % 2 == 1), place + 1, place)].copysign(x)


def quantize_again(weight: Weight) -> Tensor:
    """Quantizes what is quantized."""
    assert weight.scheme is not None
    return fake_quantize(weight.values, weight.scheme)


def quantize_an_fp8_export(weight: Weight) -> Tensor:
    """Quantizes a master that was shipped in FP8."""
    master, _, scheme = _known(weight)
    return fake_quantize(fake_quantize(master, get_scheme("fp8-block128")), scheme)


def quantize_a_bf16_export(weight: Weight) -> Tensor:
    """Quantizes a master that was shipped in bf16."""
    master, _, scheme = _known(weight)
    return fake_quantize(master.bfloat16(), scheme)


def miss_two_updates(weight: Weight) -> Tensor:
    """Serves the weights of two updates ago."""
    assert weight.scheme is not None
    return fake_quantize(weight.earlier[1], weight.scheme)


def miss_an_update_of_one_expert(weight: Weight) -> Tensor:
    """Leaves expert 1 out of the last sync."""
    assert weight.scheme is not None
    values = weight.values.clone()
    values[1] = fake_quantize(weight.earlier[0][1], weight.scheme)
    return values


def skip(weight: Weight) -> Tensor:
    """Serves the master."""
    assert weight.master is not None
    return weight.master


def include(weight: Weight) -> Tensor:
    """Quantizes what is trained unquantized."""
    assert weight.scheme is not None
    return fake_quantize(weight.values, weight.scheme)


def move_experts(weight: Weight) -> Tensor:
    """Serves experts 2, 0, 1."""
    return torch.stack([weight.values[2], weight.values[0], weight.values[1]])


def cut_columns(weight: Weight) -> Tensor:
    """Quantizes the halves of every row separately, the last group of a half as it is."""
    master, _, scheme = _known(weight)
    halves = []
    for half in master.split(master.shape[-1] // 2, -1):
        parts = half.split(scheme.granularity.size, -1) if isinstance(scheme.granularity, PerGroup) else [half]
        if isinstance(scheme.scale, LinearScale) and scheme.scale.second_level is not None:
            parts = [half]
        for part in parts:
            size = part.shape[-1]
            narrow = scheme.model_copy(update={"granularity": PerGroup(size=size)}) if len(parts) > 1 else scheme
            halves.append(fake_quantize(part.contiguous(), narrow))
    return torch.cat(halves, -1)


def exchange_gate_and_up(layer: Layer) -> Layer:
    """Serves up as gate and gate as up."""
    exchanged = {Projection.GATE: Projection.UP, Projection.UP: Projection.GATE, Projection.DOWN: Projection.DOWN}
    return {name: Weight(values=layer[source].values) for name, source in exchanged.items()}


def alternate_gate_and_up(layer: Layer) -> Layer:
    """Writes rows of gate and up in turns, reads the first half as gate."""
    gate, up = layer[Projection.GATE].values, layer[Projection.UP].values
    rows = [matrix[:, row] for row in range(gate.shape[1]) for matrix in (gate, up)]
    half = gate.shape[1]
    return {
        Projection.GATE: Weight(values=torch.stack(rows[:half], 1)),
        Projection.UP: Weight(values=torch.stack(rows[half:], 1)),
        Projection.DOWN: Weight(values=layer[Projection.DOWN].values),
    }


def decode_up_with_the_scales_of_gate(layer: Layer) -> Layer:
    """Keeps the first of two scales: that of the matrix where there is one, else those of the groups."""
    gate, up = layer[Projection.GATE], layer[Projection.UP]
    assert gate.quantized is not None
    if gate.quantized.second_scales is not None:
        assert up.quantized is not None
        values = dequantize(replace(up.quantized, second_scales=gate.quantized.second_scales))
    else:
        values = decoded(up, scales=gate.quantized.scales)
    return {**{name: Weight(values=w.values) for name, w in layer.items()}, Projection.UP: Weight(values=values)}


def move_scales_without_codes(layer: Layer) -> Layer:
    """Moves the scales of the experts one place on; what the server stores is known."""
    served = {}
    for name, weight in layer.items():
        assert weight.quantized is not None
        stored = replace(weight.quantized, scales=weight.quantized.scales.roll(1, 0))
        served[name] = Weight(values=dequantize(stored), quantized=stored)
    return served


PLANTS: dict[str, tuple[str, Plant]] = {
    "nibbles": ("nibble-order", each(read_nibbles_wrongly)),
    "ggml blocks": ("split-blocks", each(read_split_as_pairs)),
    "even first": ("split-blocks", each(read_pairs_as_even_first)),
    "axes": ("transposed-weights", each(exchange_axes)),
    "memory of the transpose": ("transposed-weights", each(keep_shape_of_transpose)),
    "scales": ("transposed-scales", each(transpose_scales)),
    "bias written twice": ("exponent-offset", each(write_bias_twice)),
    "bias read twice": ("exponent-offset", each(read_bias_twice)),
    "zero": ("zero-point", each(read_zero_of_seven)),
    "ratio": ("exponent-from-ratio", each(take_exponent_of_ratio)),
    "swapped": ("swapped-gate-up", exchange_gate_and_up),
    "alternating": ("interleaved-gate-up", alternate_gate_and_up),
    "shared": ("shared-scale", decode_up_with_the_scales_of_gate),
    "experts": ("permuted-experts", each(move_experts)),
    "scales of experts": ("permuted-experts", move_scales_without_codes),
    "shards": ("cut-groups", each(cut_columns)),
    "again": ("quantized-twice", each(quantize_again)),
    "after fp8": ("quantized-twice", each(quantize_an_fp8_export)),
    "bf16": ("source-dtype", each(quantize_a_bf16_export)),
    "two updates": ("stale", each(miss_two_updates)),
    "one expert": ("stale", each(miss_an_update_of_one_expert)),
    "skipped": ("skipped-layer", each(skip)),
    "included": ("included-layer", each(include)),
}
