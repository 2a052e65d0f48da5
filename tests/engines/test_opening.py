"""How a checkpoint is laid out on disk does not change what hi is."""

from __future__ import annotations

from pathlib import Path

import torch

from quantaudit.engines.native import NativeEngine
from quantaudit.engines.realization import Realization, apply_recipe, decoded_parameters
from quantaudit.numerics import fake_quantize, get_scheme
from tests.engines.small import CPU, draw_sequences, experts_in, open_small, small_state, write_small


def logits(realization: Realization) -> torch.Tensor:
    """Returns the logits of fixed sequences."""
    return NativeEngine(realization, CPU).forward(draw_sequences(9, 4, 17)).logits_MV


def test_shards_change_nothing(small_folders: Path) -> None:
    for kind in ("plain", "packed"):
        one, many = open_small(small_folders / kind), open_small(small_folders / f"{kind}-shards")
        assert len(list((small_folders / f"{kind}-shards").glob("*.safetensors"))) > 1
        assert torch.equal(logits(one), logits(many))


def test_a_packed_hi_is_its_exactly_decoded_weights(packed_hi: Realization, tmp_path: Path) -> None:
    scheme = get_scheme("mxfp4-even")
    decoded = {name: fake_quantize(value, scheme) for name, value in small_state() if ".experts." in name}
    assert torch.equal(logits(packed_hi), logits(open_small(write_small(tmp_path / "decoded", changed=decoded))))


def test_packed_and_quantized_here_are_one_function(plain_hi: Realization, packed_hi: Realization) -> None:
    assert torch.equal(logits(apply_recipe(plain_hi, experts_in("mxfp4-even"))), logits(packed_hi))


def test_only_a_packed_hi_has_no_full_precision_baseline(plain_hi: Realization, packed_hi: Realization) -> None:
    assert plain_hi.notes == () and plain_hi.stored == {}
    assert len(packed_hi.stored) == 9
    assert "9 of 9 expert stacks" in packed_hi.notes[0] and "no full-precision baseline" in packed_hi.notes[0]


def test_every_parameter_is_listed_once_with_its_values(plain_hi: Realization) -> None:
    listed = list(decoded_parameters(plain_hi))
    expected = dict(plain_hi.model.named_parameters())
    assert sorted(name for name, _ in listed) == sorted(expected)
    assert all(torch.equal(value, expected[name]) for name, value in listed)
    lo = dict(decoded_parameters(apply_recipe(plain_hi, experts_in("int2-g32"))))
    assert sorted(lo) == sorted(expected)
