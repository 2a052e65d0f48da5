"""A stored weight gives back the codes it was given, in fewer bytes, and says how many bits it holds."""

from __future__ import annotations

import pytest
import torch

from quantaudit.core.scheme import Layout
from quantaudit.engines import stored as stored_module
from quantaudit.engines.stored import quantize_stack, restore, store
from quantaudit.numerics import dequantize, get_scheme, quantize, scheme_names

SHAPE = (3, 16, 256)  # groups of 128 and tiles of 128 x 128 fit, the latter with a partial edge

ONE_OF_EACH_LAYOUT = {
    Layout.LOW_NIBBLE_FIRST: "mxfp4-even",
    Layout.HIGH_NIBBLE_FIRST: "nf4-b64-double",
    Layout.INT32_WORDS: "int4-g32-div7",
    Layout.GGML_SPLIT: "gguf-q4_0",
    Layout.BYTES: "fp8-block128",
}


def test_every_layout_is_tried() -> None:
    assert set(ONE_OF_EACH_LAYOUT) == set(Layout)
    for layout, name in ONE_OF_EACH_LAYOUT.items():
        assert get_scheme(name).layout is layout


@pytest.mark.parametrize("name", scheme_names())
def test_what_was_stored_comes_back(name: str) -> None:
    q = quantize(torch.randn(SHAPE), get_scheme(name))
    back = restore(store(q))
    assert back.codes.dtype == q.codes.dtype
    assert torch.equal(back.codes, q.codes)
    assert torch.equal(back.scales, q.scales)
    for mine, theirs in ((back.second_scales, q.second_scales), (back.offset, q.offset)):
        assert mine is theirs
    assert (back.shape, back.dtype, back.scheme) == (q.shape, q.dtype, q.scheme)


@pytest.mark.parametrize("name", scheme_names())
def test_decoding_a_stored_weight_is_dequantizing(name: str) -> None:
    q = quantize(torch.randn(SHAPE), get_scheme(name))
    for dtype in (torch.float32, torch.bfloat16):
        decoded = store(q).decode(dtype)
        assert decoded.dtype == dtype
        assert torch.equal(decoded, dequantize(q, dtype))


def test_an_odd_width_is_restored_without_its_filling() -> None:
    q = quantize(torch.randn(2, 3, 7), get_scheme("nf4-b64"))
    stored = store(q)
    assert stored.packed.shape[-1] == 4
    assert torch.equal(restore(stored).codes, q.codes)


@pytest.mark.parametrize(("name", "factor"), [("mxfp4-even", 2), ("int4-g32-div7", 2), ("fp8-channel", 1)])
def test_codes_are_packed(name: str, factor: int) -> None:
    stored = store(quantize(torch.randn(SHAPE), get_scheme(name)))
    assert stored.packed.numel() * stored.packed.element_size() == 3 * 16 * 256 // factor


NUM = 3 * 16 * 256
BITS = {
    "mxfp4-even": 4 * NUM + 8 * NUM // 32,
    "nvfp4": 4 * NUM + 8 * NUM // 16 + 3 * 32,  # and one fp32 scale for each matrix of the stack
    "int2-g32": 2 * NUM + 32 * NUM // 32,  # 2 bits though a byte holds each code
    "fp8-block128": 8 * NUM + 3 * 2 * 32,  # a row of two tiles a matrix
    "gguf-q4_0": 4 * NUM + 32 * NUM // 32,  # scales are fp16 values held in fp32
}


@pytest.mark.parametrize(("name", "bits"), BITS.items())
def test_payload_counts_codes_and_scales(name: str, bits: int) -> None:
    assert store(quantize(torch.randn(SHAPE), get_scheme(name))).payload_bits() == bits


def test_moving_keeps_every_part() -> None:
    stored = store(quantize(torch.randn(SHAPE), get_scheme("nf4-b64-double")))
    moved = stored.to(torch.device("meta"))
    parts = (moved.packed, moved.scales, moved.second_scales, moved.offset)
    assert all(part is not None and part.is_meta for part in parts)
    assert (moved.shape, moved.scheme) == (stored.shape, stored.scheme)


@pytest.mark.parametrize("name", scheme_names())
def test_a_stack_worked_through_in_pieces_is_the_stack_worked_through_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.randn(7, 8, 256)
    whole = quantize(weight, get_scheme(name))
    monkeypatch.setattr(stored_module, "_VALUES_AT_ONCE", 3 * 8 * 256)  # pieces of 3, 3 and 1
    piecewise = quantize_stack(weight, get_scheme(name))
    codes = restore(piecewise)
    assert torch.equal(codes.codes, whole.codes) and torch.equal(codes.scales, whole.scales)
    for mine, theirs in ((codes.second_scales, whole.second_scales), (codes.offset, whole.offset)):
        assert (mine is None) == (theirs is None)
        assert mine is None or theirs is None or torch.equal(mine, theirs)
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(piecewise.decode(dtype), dequantize(whole, dtype))


@pytest.mark.parametrize("shape", [(0, 4, 64), (4, 0, 64), (2, 64)])
def test_empty_stacks_and_single_matrices_are_stored_too(shape: tuple[int, ...]) -> None:
    stored = quantize_stack(torch.zeros(shape), get_scheme("mxfp4-even"))
    assert stored.shape == shape and stored.decode(torch.float32).shape == shape
