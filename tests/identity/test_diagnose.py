"""A fault planted in a layer is named with its kind, both sides' settings, its share and what comes next."""

from __future__ import annotations

import torch

from quantaudit.identity.diagnose import diagnose, find_latent
from quantaudit.identity.layer_pair import Pair
from quantaudit.identity.mismatches.protocol import Projection
from quantaudit.numerics import dequantize, fake_quantize, get_scheme, quantize

SCHEME = get_scheme("mxfp4-even")


def masters(seed: int = 2) -> dict[Projection, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {Projection.GATE: (3, 24, 64), Projection.UP: (3, 24, 64), Projection.DOWN: (3, 40, 96)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def served(change: dict[Projection, torch.Tensor]) -> dict[Projection, Pair]:
    """Both sides of a layer that is quantized right but for some projections."""
    right = {name: fake_quantize(master, SCHEME) for name, master in masters().items()}
    return {name: Pair(master=master, served=(right | change)[name]) for name, master in masters().items()}


def test_swapped_nibbles_are_named() -> None:
    quantized = quantize(masters()[Projection.DOWN], SCHEME)
    swapped = quantized.codes.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    quantized.codes.copy_(swapped)
    found = diagnose(served({Projection.DOWN: dequantize(quantized)}), [SCHEME])
    assert found is not None and found.num_left == 0 and found.scheme == SCHEME
    assert (found.found.kind, found.found.mismatch, found.found.explains) == ("K8", "nibble-order", 1.0)
    assert (found.found.train, found.found.serve) == ("low nibble first", "high nibble first")
    assert list(found.experts) == [Projection.DOWN]


def test_the_scheme_that_leaves_least_is_taken() -> None:
    gate = fake_quantize(masters()[Projection.GATE], SCHEME)
    pairs = served({Projection.GATE: gate[[1, 0, 2]]})
    found = diagnose(pairs, [get_scheme("mxfp4-floor"), SCHEME, get_scheme("mxfp4-ceil")])
    assert found is not None and found.scheme == SCHEME and found.num_left == 0
    assert found.found.mismatch == "permuted-experts" and found.experts[Projection.GATE] == (0, 1)


def test_stale_experts_need_the_earlier_masters() -> None:
    new, old = masters(), masters(seed=8)
    weights = {name: fake_quantize(old[name], SCHEME) for name in new}
    blind = {name: Pair(master=new[name], served=weights[name]) for name in new}
    assert diagnose(blind, [SCHEME]) is None
    seeing = {name: Pair(master=new[name], served=weights[name], earlier=(old[name],)) for name in new}
    found = diagnose(seeing, [SCHEME])
    assert found is not None and found.found.mismatch == "stale" and found.num_left == 0
    assert found.found.serve == "1 update earlier"


def test_equal_sides_have_no_fault() -> None:
    assert diagnose(served({}), [SCHEME]) is None


def test_groups_that_do_not_fit_are_left_out() -> None:
    odd = {Projection.WHOLE: Pair(master=torch.ones(2, 33), served=torch.zeros(2, 33))}
    assert diagnose(odd, [SCHEME]) is None


def test_a_fault_without_effect_is_latent() -> None:
    same = torch.full((2, 4, 64), 1.5)  # every code and scale alike: their order cannot be seen
    pairs = {Projection.WHOLE: Pair(master=same, served=fake_quantize(same, SCHEME))}
    latent = find_latent(pairs, SCHEME)
    assert {"nibble-order", "split-blocks", "permuted-experts", "source-dtype"} <= set(latent)
    assert "exponent-offset" not in latent
