"""How a checkpoint is laid out on disk does not change what hi is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from quantaudit.checkpoint.names import Role
from quantaudit.checkpoint.reader import Checkpoint, open_checkpoint
from quantaudit.core.recipe import Recipe
from quantaudit.engines.native import NativeEngine
from quantaudit.engines.opening import open_served
from quantaudit.engines.realization import Realization, apply_recipe, parameter_readers, weight_values
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
    readers = parameter_readers(plain_hi)
    expected = dict(plain_hi.model.named_parameters())
    assert sorted(readers) == sorted(expected)
    assert all(torch.equal(read(), expected[name]) for name, read in readers.items())
    assert sorted(parameter_readers(apply_recipe(plain_hi, experts_in("int2-g32")))) == sorted(expected)


def test_lo_opened_as_it_is_served_is_hi_with_its_codes(packed_hi: Realization, small_folders: Path) -> None:
    served, kept = (
        open_served(open_checkpoint(small_folders / "packed"), CPU),
        apply_recipe(packed_hi, Recipe(name="x")),
    )
    assert torch.equal(logits(served), logits(kept)) and torch.equal(logits(served), logits(packed_hi))
    assert served.stored.keys() == kept.stored.keys() and served.notes == ()
    for (name, mine), (other, theirs) in zip(weight_values(served), weight_values(kept), strict=True):
        assert name == other and torch.equal(mine, theirs)


def test_what_is_stored_packed_is_never_decoded_while_lo_is_opened(
    small_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Checkpoint, layer: int, role: Role) -> Tensor:
        raise AssertionError("decoded a stack")

    monkeypatch.setattr(Checkpoint, "decoded_stack", refuse)
    served = open_served(open_checkpoint(small_folders / "packed"), CPU)
    assert not any(".experts." in name or p.is_meta for name, p in served.model.named_parameters())
    with pytest.raises(AssertionError, match="decoded a stack"):
        open_served(open_checkpoint(small_folders / "plain"), CPU)


def test_a_checkpoint_that_is_not_packed_is_served_as_it_is(plain_hi: Realization, small_folders: Path) -> None:
    served = open_served(open_checkpoint(small_folders / "plain"), CPU)
    assert served.stored == {} and torch.equal(logits(served), logits(plain_hi))
