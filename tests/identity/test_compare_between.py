"""A fault between two large quantized sides is named by a few values as by a full search, and counted in full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quantaudit.core.comparison import Encoding
from quantaudit.core.scheme import ExponentScale, Layout
from quantaudit.identity import compare_between, compare_confirm, compare_leads
from quantaudit.identity.compare_between import search_between
from quantaudit.identity.compare_leads import Between, find_leads
from quantaudit.identity.compare_matrix import compare_matrices
from quantaudit.identity.compare_record import Record, sketch_both
from quantaudit.identity.layouts.logical import LogicalTensor, MatrixSource
from quantaudit.identity.layouts.stored import Packing, Part, ScaleKind, StoredMatrix
from quantaudit.identity.mismatches.protocol import Finding, Layer, Projection, Weight
from quantaudit.identity.mismatches.weights import quantize_weight
from quantaudit.numerics import fake_quantize, get_scheme, pack
from tests.identity.mismatches.planted import PLANTS

SHAPES = {Projection.GATE: (128, 128), Projection.UP: (128, 128), Projection.DOWN: (256, 128)}
EXPERTS = 3
# What needs no master. "axes" has other shapes, a bias written twice infinite values: no rows are drawn of these.
BY_CODES = (
    "nibbles",
    "ggml blocks",
    "even first",
    "memory of the transpose",
    "scales",
    "bias read twice",
    "zero",
    "swapped",
    "alternating",
    "experts",
)


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches as in a layer of millions of values."""
    monkeypatch.setattr(compare_between, "LARGE", 1)
    monkeypatch.setattr(compare_confirm, "_PIECE", 1)


def trained(scheme: str) -> Layer:
    generator = torch.Generator().manual_seed(11)
    return {
        name: quantize_weight(torch.randn(EXPERTS, *shape, generator=generator), get_scheme(scheme))
        for name, shape in SHAPES.items()
    }


def stored(weight: Weight, expert: int) -> StoredMatrix:
    """Returns one expert, packed where its codes are known."""
    values, codes = weight.values[expert], weight.quantized
    if codes is None:
        shape = values.shape[0], values.shape[1]
        return StoredMatrix(encoding=Encoding.PLAIN, shape=shape, parts={Part.NUMBERS: values.contiguous()})
    is_power = isinstance(codes.scheme.scale, ExponentScale)
    packing = Packing(
        element=codes.scheme.element,
        layout=Layout.LOW_NIBBLE_FIRST,
        scale=ScaleKind.E8M0 if is_power else ScaleKind.FLOAT,
        tile_rows=1,
        tile_cols=32,
    )
    parts = {Part.CODES: pack(codes.codes[expert], packing.layout), Part.SCALES: codes.scales[expert]}
    encoding = Encoding.MXFP4 if is_power else Encoding.INT4
    return StoredMatrix(encoding=encoding, shape=(values.shape[0], values.shape[1]), parts=parts, packing=packing)


def as_tensors(matrices: Mapping[Projection, list[StoredMatrix]]) -> dict[Projection, LogicalTensor]:
    found = {}
    for name, experts in matrices.items():
        sources = {
            e: MatrixSource(
                label="",
                encoding=m.encoding,
                storage="",
                shape=m.shape,
                num_bytes=m.num_bytes,
                read=lambda m=m: m,  # type: ignore[misc]
            )
            for e, m in enumerate(experts)
        }
        found[name] = LogicalTensor(name=name, matrices=sources)
    return found


def between(train: Layer, serve: Layer) -> Between:
    known, other = (
        {name: [stored(weight, e) for e in range(EXPERTS)] for name, weight in side.items()} for side in (train, serve)
    )
    records = {}
    for name in SHAPES:
        records[name] = {
            e: Record(found.differing.values or 0, found.rows, *sketch_both(a, b))
            for e, (a, b) in enumerate(zip(known[name], other[name], strict=True))
            for found in [compare_matrices(a, b, None)]
        }
    return Between(known=as_tensors(known), other=as_tensors(other), records=records)


def in_full(layer: Between) -> Finding | None:
    return compare_between._try_all(layer, ())


@pytest.mark.parametrize("plant", BY_CODES)
@pytest.mark.parametrize("scheme", ["mxfp4-even", "int4-g32-div7.5"])
def test_what_leads_is_what_a_full_search_finds(scheme: str, plant: str) -> None:
    train = trained(scheme)
    name, change = PLANTS[plant]
    serve = change(train)
    if serve is None:
        return
    layer = between(train, serve)
    found, full = search_between(layer), in_full(layer)
    assert found is not None and full is not None
    assert found.about.name == full.about.name == name
    assert (found.train, found.serve) == (full.train, full.serve)
    assert found.explains == full.explains == 1.0
    assert (found.num_differing, found.num_left, found.experts) == (full.num_differing, 0, full.experts)


def test_scales_moved_without_their_codes_are_found_by_sketches() -> None:
    train = trained("mxfp4-even")
    serve = PLANTS["scales of experts"][1](train)
    assert serve is not None
    layer = between(train, serve)
    found, full = search_between(layer), in_full(layer)
    assert found is not None and full is not None and found.serve == full.serve
    assert "scales moved" in found.serve and found.explains == full.explains == 1.0


@pytest.mark.parametrize("other", ["int8-channel", "fp8-block128", "nvfp4"])
def test_a_second_quantizer_of_rows_blocks_or_the_whole_matrix_is_found(other: str) -> None:
    train = trained("mxfp4-even")
    serve = {
        name: Weight(values=torch.stack([fake_quantize(expert, get_scheme(other)) for expert in weight.values]))
        for name, weight in train.items()
    }
    layer = between(train, serve)
    found, full = search_between(layer), in_full(layer)
    assert full is not None and full.explains == 1
    assert found is not None and (found.about.name, found.serve, found.explains) == (
        "quantized-twice",
        f"then quantized by {other}",
        1.0,
    )


def test_a_fault_of_one_expert_is_counted_on_that_expert() -> None:
    train = trained("mxfp4-even")
    swapped = PLANTS["nibbles"][1](train)
    assert swapped is not None
    values = {name: weight.values.clone() for name, weight in train.items()}
    values[Projection.DOWN][2] = swapped[Projection.DOWN].values[2]
    found = search_between(between(train, {name: Weight(values=v) for name, v in values.items()}))
    assert found is not None and (found.about.name, found.explains) == ("nibble-order", 1.0)
    assert found.experts == {Projection.DOWN: (2,)}


def test_a_share_is_exact_where_a_fault_explains_a_part() -> None:
    train = trained("mxfp4-even")
    swapped = PLANTS["nibbles"][1](train)
    assert swapped is not None
    values = {name: weight.values.clone() for name, weight in swapped.items()}
    values[Projection.UP][1, ::2] *= 2  # nothing explains these rows
    layer = between(train, {name: Weight(values=v) for name, v in values.items()})
    found, full = search_between(layer), in_full(layer)
    assert found is not None and full is not None and found.about.name == "nibble-order"
    assert 0.5 < found.explains < 1 and found.explains == full.explains and found.num_left == full.num_left


@pytest.mark.parametrize("share", [0.0001, 0.3])
def test_codes_that_nothing_moved_are_not_explained(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(finding: Finding, layer: Between) -> Finding | None:
        raise AssertionError(f"{finding.about.name} was counted on every value")

    monkeypatch.setattr(compare_between, "confirm", counted)
    train = trained("mxfp4-even")
    layer = between(train, {name: with_noise(weight, share) for name, weight in train.items()})
    assert layer.num_differing() and search_between(layer) is None


def with_noise(weight: Weight, share: float) -> Weight:
    assert weight.quantized is not None
    generator = torch.Generator().manual_seed(3)
    chosen = torch.rand(weight.values.shape, generator=generator) < share
    codes = torch.where(chosen, weight.quantized.codes ^ 1, weight.quantized.codes)
    return replace(weight, quantized=replace(weight.quantized, codes=codes))


def test_the_values_looked_at_do_not_grow_with_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_leads, "_SAMPLED", 1 << 12)
    decoded: list[int] = []
    values = StoredMatrix.values

    def counted(self: StoredMatrix, rows: slice, dtype: torch.dtype = torch.float32) -> Tensor:
        found = values(self, rows, dtype)
        decoded.append(found.numel())
        return found

    def num_decoded(height: int) -> int:
        generator = torch.Generator().manual_seed(1)
        train = {Projection.DOWN: quantize_weight(torch.randn(EXPERTS, height, 128, generator=generator), scheme)}
        serve = {Projection.DOWN: with_noise(train[Projection.DOWN], 0.3)}
        monkeypatch.setitem(SHAPES, Projection.DOWN, (height, 128))
        layer = between({**trained("mxfp4-even"), **train}, {**trained("mxfp4-even"), **serve})
        decoded.clear()
        find_leads(layer)
        return sum(decoded)

    scheme = get_scheme("mxfp4-even")
    monkeypatch.setattr(StoredMatrix, "values", counted)
    assert num_decoded(4096) <= 1.1 * num_decoded(512)
