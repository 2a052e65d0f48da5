"""The kernel's layout holds every scheme's weights exactly, in another order, and goes stale when it is not rebuilt."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quantaudit.core.scheme import Scheme
from quantaudit.engines.stored import StoredTensor, quantize_stack
from quantaudit.numerics import get_scheme
from quantaudit.training.rl.bucket import Field, Piece
from quantaudit.training.rl.derived import decode_layout, derive_layout, unpack_layout
from quantaudit.training.rl.faults import Halves, PostLoad
from quantaudit.training.rl.loaded import LoadedWeight, fields_of, take_in

SCHEMES = ("mxfp4-even", "nvfp4", "int4-g32-div7", "fp8-block128", "mxfp8-e4m3-even", "nf4-b64", "int3-g32-div3")
NAME = "layers.1.moe.experts.w13"


def weight(seed: int, rows: int = 12, cols: int = 64) -> Tensor:
    """Returns `[4, rows, cols]` bf16; no number of rows or bytes is a whole number of tiles."""
    return torch.randn(4, rows, cols, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def loaded(values: Tensor, scheme: Scheme | None, version: int = 0, held: LoadedWeight | None = None) -> LoadedWeight:
    """Returns a weight after all its pieces have arrived."""
    whole = values if scheme is None else quantize_stack(values, scheme)
    for field, tensor in fields_of(whole).items():
        code_dtype = whole.code_dtype if isinstance(whole, StoredTensor) else torch.uint8
        piece = Piece(
            name=NAME, part="w1", field=field, shard=0, tensor=tensor, scheme=scheme, shape=tuple(values.shape),
            code_dtype=code_dtype,
        )  # fmt: skip
        held = take_in(held, piece, version)
    assert held is not None
    return held


def schemes() -> list[str]:
    """Returns the schemes above that the catalogue has."""
    known = []
    for name in SCHEMES:
        try:
            known.append(get_scheme(name).name)
        except ValueError:
            continue
    assert len(known) >= 6
    return known


@pytest.mark.parametrize("name", [*schemes(), "bf16"])
def test_decoding_the_layout_gives_what_was_loaded(name: str) -> None:
    scheme = None if name == "bf16" else get_scheme(name)
    gate, up = weight(1), weight(2)
    parts = {"w1": loaded(gate, scheme), "w3": loaded(up, scheme)}
    layout = derive_layout(NAME, 0, parts, PostLoad(), None)
    decoded = decode_layout(layout)
    for part, values in (("w1", gate), ("w3", up)):
        wanted = values.float() if scheme is None else quantize_stack(values, scheme).decode(torch.float32)
        assert torch.equal(decoded[part], wanted)


def test_the_layout_is_not_the_checkpoints() -> None:
    stored = quantize_stack(weight(1), get_scheme("mxfp4-even"))
    layout = derive_layout(NAME, 0, {"w2": loaded(weight(1), get_scheme("mxfp4-even"))}, PostLoad(), None)
    assert layout.tiles.shape == (4, 2, 4, 8, 8)  # 12 rows and 32 bytes, filled to tiles
    assert layout.tiles.flatten()[:8].tolist() != stored.packed.flatten()[:8].tolist()
    assert layout.above[Field.SCALES].shape == (4, 2, 12)  # stored [4, 12, 2]


@pytest.mark.parametrize("halves", [Halves.UP_FIRST, Halves.INTERLEAVED])
def test_another_order_of_the_halves_is_read_as_another_weight(halves: Halves) -> None:
    scheme = get_scheme("mxfp4-even")
    parts = {"w1": loaded(weight(1), scheme), "w3": loaded(weight(2), scheme)}
    right = decode_layout(derive_layout(NAME, 0, parts, PostLoad(), None))
    wrong = decode_layout(derive_layout(NAME, 0, parts, PostLoad(halves=halves), None))
    if halves is Halves.UP_FIRST:
        assert torch.equal(wrong["w1"], right["w3"]) and torch.equal(wrong["w3"], right["w1"])
    else:
        rows = torch.stack([right["w1"], right["w3"]], dim=2).flatten(1, 2)
        assert torch.equal(torch.cat([wrong["w1"], wrong["w3"]], dim=1), rows)


def test_scales_that_are_not_refreshed_stay_those_of_the_layout_before() -> None:
    scheme = get_scheme("mxfp4-even")
    old, new = {"w2": loaded(weight(1), scheme)}, {"w2": loaded(weight(1) * 4, scheme, version=1)}
    before = derive_layout(NAME, 0, old, PostLoad(), None)
    after = derive_layout(NAME, 0, new, PostLoad(refresh_scales=False), before)
    assert torch.equal(after.above[Field.SCALES], before.above[Field.SCALES])
    # Four times the weights have the same codes, so without new scales nothing has changed.
    assert torch.equal(decode_layout(after)["w2"], decode_layout(before)["w2"])
    assert torch.equal(
        decode_layout(derive_layout(NAME, 0, new, PostLoad(), before))["w2"], decode_layout(before)["w2"] * 4
    )


def test_a_field_that_does_not_arrive_keeps_its_version_and_its_values() -> None:
    scheme = get_scheme("mxfp4-even")
    held = loaded(weight(1), scheme)
    stored = quantize_stack(weight(2), scheme)
    piece = Piece(
        name=NAME, part="w1", field=Field.CODES, shard=0, tensor=stored.packed, scheme=scheme, shape=stored.shape
    )
    mixed = take_in(held, piece, 5)
    assert mixed.oldest == 0 and mixed.versions[Field.CODES] == 5
    assert mixed.fields[Field.SCALES] is held.fields[Field.SCALES]


def test_values_replace_codes_whole() -> None:
    held = loaded(weight(1), get_scheme("mxfp4-even"))
    values = loaded(weight(2), None, version=3, held=held)
    assert set(values.fields) == {Field.VALUES} and values.scheme is None and values.oldest == 3


@pytest.mark.parametrize("name", schemes())
def test_values_with_a_scheme_are_quantized_on_arrival(name: str) -> None:
    scheme = get_scheme(name)
    piece = Piece(name=NAME, part="w1", field=Field.VALUES, shard=0, tensor=weight(3), scheme=scheme, shape=(4, 12, 64))
    arrived = take_in(None, piece, 0).as_weight()
    sent = loaded(weight(3), scheme).as_weight()
    assert isinstance(arrived, StoredTensor) and isinstance(sent, StoredTensor)
    for mine, theirs in ((arrived.packed, sent.packed), (arrived.scales, sent.scales)):
        assert torch.equal(mine, theirs)
    assert torch.equal(arrived.decode(torch.float32), sent.decode(torch.float32))


def test_unpacking_gives_back_the_bytes() -> None:
    stored = quantize_stack(weight(4), get_scheme("int4-g32-div7"))
    layout = derive_layout(NAME, 0, {"w2": loaded(weight(4), get_scheme("int4-g32-div7"))}, PostLoad(), None)
    back = unpack_layout(layout)["w2"]
    assert isinstance(back, StoredTensor)
    assert torch.equal(back.packed, stored.packed) and torch.equal(back.scales, stored.scales)
