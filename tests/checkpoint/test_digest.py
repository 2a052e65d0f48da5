"""Equal digests mean equal names, dtypes, shapes and bytes, however they are spread over files."""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantaudit.checkpoint.digest import digest_by_layer, digest_checkpoint, digest_parameters, digest_tensors
from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.checkpoint.serialize import NamedTensor
from quantaudit.numerics import get_scheme, quantize
from tests.checkpoint.tiny import TINY, WEIGHTS, edit_tensors, random_state


def digest_of(*tensors: tuple[str, Tensor]) -> str:
    """Returns the digest of a few tensors."""
    return digest_tensors([NamedTensor(*t) for t in tensors])


def test_a_model_and_the_checkpoint_written_from_it_have_one_digest(written: Path) -> None:
    state = random_state()
    assert digest_checkpoint(open_checkpoint(written / "plain")) == digest_parameters(state.items(), TINY)
    scheme = get_scheme("mxfp4-even")
    packed = [(n, quantize(t, scheme) if ".experts." in n else t) for n, t in reversed(state.items())]
    expected = digest_parameters(packed, TINY)
    assert digest_checkpoint(open_checkpoint(written / "packed")) == expected
    assert digest_checkpoint(open_checkpoint(written / "sharded")) == expected


# More than ten layers: by name, layer 10 comes before layer 2.
DEEP = replace(
    TINY,
    num_hidden_layers=12,
    linear_attn_config=replace(TINY.linear_attn_config, full_attn_layers=(2, 12)),
)


def test_reading_layer_by_layer_does_not_change_the_digest() -> None:
    state = random_state(DEEP)
    readers = {name: partial(state.__getitem__, name) for name in reversed(state)}
    assert digest_by_layer(readers, DEEP) == digest_parameters(state.items(), DEEP)


def test_no_more_than_two_layers_are_held_while_a_digest_is_taken() -> None:
    held: list[weakref.ref[NDArray[np.int32]]] = []
    most = 0

    def read(value: Tensor) -> Tensor:
        """Returns a copy whose memory belongs to an array that can be watched."""
        nonlocal most
        memory = value.contiguous().view(torch.int32 if value.dtype == torch.float32 else torch.int16).numpy().copy()
        held.append(weakref.ref(memory))
        most = max(most, sum(ref() is not None for ref in held))
        return torch.from_numpy(memory).view(value.dtype)

    state = random_state(DEEP)
    digest_by_layer({name: partial(read, value) for name, value in state.items()}, DEEP)
    of_a_layer = [sum(name.startswith(f"model.layers.{i}.") for name in state) for i in range(12)]
    assert max(of_a_layer) <= most <= 2 * max(of_a_layer) < len(state)


def test_one_bit_changes_the_digest(plain: Path) -> None:
    before = digest_checkpoint(open_checkpoint(plain))
    name = "language_model.model.norm.weight"
    edit_tensors(
        plain / WEIGHTS, lambda t: t.update({name: (*t[name][:2], bytes([t[name][2][0] ^ 1]) + t[name][2][1:])})
    )
    assert digest_checkpoint(open_checkpoint(plain)) != before


def test_padding_and_vision_do_not_change_the_digest(plain: Path) -> None:
    before = digest_checkpoint(open_checkpoint(plain))
    name = "language_model.model.layers.0.self_attn.A_log"
    edit_tensors(
        plain / WEIGHTS, lambda t: t.update({name: ("F32", [5], t[name][2][:20]), "vision_tower.x": ("U8", [1], b"x")})
    )
    assert digest_checkpoint(open_checkpoint(plain)) == before


def test_names_dtypes_and_shapes_are_part_of_it() -> None:
    x = torch.arange(6, dtype=torch.float32)
    digests = {
        digest_of(("a", x)),
        digest_of(("b", x)),
        digest_of(("a", x.reshape(2, 3))),
        digest_of(("a", x.view(torch.uint8))),
        digest_of(("a", x[:3]), ("b", x[3:])),
        digest_of(("a", x[:2]), ("b", x[2:])),
        digest_of(("a", -x)),
        digest_of(),
    }
    assert len(digests) == 8


def test_zeros_of_either_sign_differ() -> None:
    assert digest_of(("a", torch.tensor([0.0]))) != digest_of(("a", torch.tensor([-0.0])))


def test_views_have_the_digest_of_their_copies() -> None:
    x = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    assert digest_of(("a", x.T)) == digest_of(("a", x.T.contiguous())) != digest_of(("a", x.reshape(4, 3)))


def test_the_digest_of_the_format_does_not_drift() -> None:
    # Digests are published in reports: a change of this value is a change of their meaning.
    x = torch.arange(4, dtype=torch.bfloat16)
    assert digest_of(("a", x), ("b", torch.zeros(2, 2, dtype=torch.uint8))).startswith("de5cbe2427445c31")


def test_names_out_of_order_are_a_mistake_of_the_caller() -> None:
    x = torch.zeros(1)
    with pytest.raises(AssertionError):
        digest_of(("b", x), ("a", x))
