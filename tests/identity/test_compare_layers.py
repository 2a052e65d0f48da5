"""Layers that differ alike are explained alike, each counted in full; group maxima are read where they lie."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from quantaudit.core.format import E2M1, INT4
from quantaudit.identity import compare_between, compare_diagnosis
from quantaudit.identity.compare_codes import _count_maxima
from quantaudit.identity.compare_grid import _Grid, _numbers
from quantaudit.identity.compare_leads import Between
from quantaudit.identity.compare_paths import compare
from quantaudit.identity.histogram import read_codes
from quantaudit.identity.mismatches.protocol import Finding
from quantaudit.identity.search_sample import read_served
from tests.identity.test_compare_values import MATRICES
from tests.identity.test_layouts import in_module, mxfp4_parts, weight, write

LAYERS = 6


@pytest.mark.parametrize("is_large", [False, True])
def test_what_explains_one_layer_is_asked_first_of_the_others(
    is_large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []
    search = compare_between.search_layer

    def recorded(layer: Between, only: dict[str, float] | tuple[str, ...] = ()) -> list[Finding]:
        asked.append(tuple(only))
        return search(layer, only)

    monkeypatch.setattr(compare_diagnosis, "search_layer", recorded)
    if is_large:
        monkeypatch.setattr(compare_between, "LARGE", 1)
    a, b = dict[str, Tensor](), dict[str, Tensor]()
    for layer in range(LAYERS):
        parts = mxfp4_parts(weight(64, 128, seed=layer))
        other = {**parts, "weight_packed": parts["weight_packed"] << 4 | parts["weight_packed"] >> 4}
        module = f"model.layers.{layer}.mlp.experts.0.up_proj"
        a |= in_module(parts, module)
        b |= in_module(other, module)
    found = compare(write(tmp_path / "a.safetensors", a), write(tmp_path / "b.safetensors", b), threads=1)
    (diagnosis,) = found.diagnosis
    assert (diagnosis.mismatch, diagnosis.explains, len(diagnosis.tensors)) == ("nibble-order", 1.0, LAYERS)
    assert asked == [(), *[("nibble-order",)] * (LAYERS - 1)]


def test_layers_that_nothing_explains_are_soon_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def nothing(layer: Between) -> list[Finding]:
        asked.append(1)
        return []

    monkeypatch.setattr(compare_diagnosis, "search_layer", nothing)
    sides = [
        {
            name: part
            for layer in range(LAYERS)
            for name, part in in_module(
                mxfp4_parts(weight(8, 64, seed=seed + layer)), f"model.layers.{layer}.mlp.experts.0.up_proj"
            ).items()
        }
        for seed in (0, 50)
    ]
    paths = [write(tmp_path / f"{i}.safetensors", side) for i, side in enumerate(sides)]
    assert compare(*paths, threads=1).diagnosis == ()
    assert len(asked) == compare_diagnosis._MOST_LAYERS < LAYERS


@pytest.mark.parametrize("name", ["mxfp4", "mxfp4, high nibble", "gguf", "mxfp4, short groups", "int4"])
def test_group_maxima_are_those_of_unpacked_codes(name: str) -> None:
    matrix = MATRICES[name]()
    found = _count_maxima(matrix)
    assert found is not None
    assert {str(code): count for code, count in found.items()} == read_codes(read_served(matrix)).histogram


@pytest.mark.parametrize("element", [E2M1, INT4])
def test_a_grid_rounds_to_every_number_from_nearby(element: object) -> None:
    numbers = sorted(set(_numbers(element)))  # type: ignore[arg-type]
    grid = _Grid(numbers)
    exact = torch.tensor(numbers)
    for error in (-(2.0**-8), 0.0, 2.0**-8):  # twice what rounding to bf16 may do
        assert torch.equal(grid.round((exact * (1 + error)).view(1, -1)).view(-1), exact)
    assert not torch.isin(grid.round(torch.tensor([[2.5, 5.0, 40.0]])), torch.tensor([40.0])).any()
