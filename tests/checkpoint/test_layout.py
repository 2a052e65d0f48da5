"""Every tensor is there once, in its shape and dtype, and no other; what differs is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.core.errors import InputError
from quantaudit.core.serial import Json
from tests.checkpoint.tiny import LAYER_2, WEIGHTS, edit_json, edit_tensors

Tensors = dict[str, tuple[str, list[int], bytes]]
A_LOG = "language_model.model.layers.0.self_attn.A_log"
NORM = "language_model.model.norm.weight"


def refused(folder: Path, change: Callable[[Tensors], object]) -> str:
    """Returns the message with which the changed checkpoint is refused."""
    edit_tensors(folder / WEIGHTS, change)
    with pytest.raises(InputError) as caught:
        open_checkpoint(folder)
    assert caught.value.expected and caught.value.fix
    return str(caught.value)


def test_a_written_checkpoint_fits(written: Path) -> None:
    for name in ("plain", "packed", "sharded"):
        open_checkpoint(written / name)


def test_missing_tensors_are_counted(plain: Path) -> None:
    def drop(tensors: Tensors) -> None:
        for name in (NORM, f"{LAYER_2}.3.w2.weight", f"{LAYER_2}.4.w1.weight"):
            del tensors[name]

    assert f"lacks 3 of 154 tensors, first {NORM}" in refused(plain, drop)


def test_unexpected_tensors_are_counted(plain: Path) -> None:
    def add(tensors: Tensors) -> None:
        tensors["language_model.model.layers.5.mlp.gate_proj.weight"] = ("BF16", [1], b"xx")
        tensors[f"{LAYER_2}.6.w1.weight"] = ("BF16", [1], b"xx")
        tensors["language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight"] = ("BF16", [1], b"xx")

    assert "holds 3 tensors that the model has not, first 'language_model.model.layers.5.mlp" in refused(plain, add)


@pytest.mark.parametrize("name", ["weight_shape", "weight_scale_2", "weight_global_scale"])
def test_a_part_of_another_packed_format_is_refused(packed: Path, name: str) -> None:
    message = refused(packed, lambda tensors: tensors.update({f"{LAYER_2}.0.w1.{name}": ("U8", [1], b"x")}))
    assert f"{LAYER_2}.0.w1" in message


@pytest.mark.parametrize("name", ["weight_zero_point", "input_scale"])
def test_parts_of_other_packed_formats_are_unexpected(packed: Path, name: str) -> None:
    message = refused(packed, lambda tensors: tensors.update({f"{LAYER_2}.0.w1.{name}": ("U8", [1], b"x")}))
    assert f"holds 1 tensors that the model has not, first '{LAYER_2}.0.w1.{name}'" in message


def test_vision_is_left_alone(plain: Path) -> None:
    edit_tensors(
        plain / WEIGHTS,
        lambda t: t.update({"vision_tower.x": ("F16", [1], b"xx"), "mm_projector.y": ("I8", [1], b"x")}),
    )
    open_checkpoint(plain)


@pytest.mark.parametrize("shape", [[23], [25], [24, 1], [1, 24], [], [48]])
def test_another_shape_is_refused(plain: Path, shape: list[int]) -> None:
    size = 2
    for n in shape:
        size *= n
    message = refused(plain, lambda tensors: tensors.update({NORM: ("BF16", shape, bytes(size))}))
    assert f"{NORM} has the shape {shape}; expected [24]" in message


def test_a_transposed_expert_is_refused(plain: Path) -> None:
    name = f"{LAYER_2}.0.w1.weight"
    message = refused(plain, lambda tensors: tensors.update({name: ("BF16", [64, 32], tensors[name][2])}))
    assert f"{name} has the shape [64, 32]; expected [32, 64]" in message


@pytest.mark.parametrize("shape", [[4], [1, 32], []])
def test_a_log_is_one_axis_of_at_least_the_heads(plain: Path, shape: list[int]) -> None:
    size = 4
    for n in shape:
        size *= n
    message = refused(plain, lambda tensors: tensors.update({A_LOG: ("F32", shape, bytes(size))}))
    assert f"{A_LOG} has the shape {shape}; expected one axis of at least 5" in message


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        (NORM, "F16", "BF16 or F32"),
        (NORM, "U16", "BF16 or F32"),
        (f"{LAYER_2}.0.w3.weight", "F16", "BF16 or F32"),
        (f"{LAYER_2}.0.w3.weight", "I16", "BF16 or F32"),
    ],
)
def test_another_dtype_is_refused(plain: Path, name: str, dtype: str, expected: str) -> None:
    message = refused(plain, lambda t: t.update({name: (dtype, t[name][1], t[name][2])}))
    assert f"{name} is stored as {dtype}; expected {expected}" in message


@pytest.mark.parametrize("parameter", ["self_attn.A_log", "self_attn.dt_bias", "self_attn.q_conv1d.weight"])
def test_float32_tensors_may_not_be_narrower(plain: Path, parameter: str) -> None:
    name = f"language_model.model.layers.0.{parameter}"
    message = refused(plain, lambda t: t.update({name: ("BF16", t[name][1], t[name][2][::2])}))
    assert f"{name} is stored as BF16; expected F32" in message


@pytest.mark.parametrize("part", ["weight_packed", "weight_scale"])
def test_codes_and_scales_are_bytes(packed: Path, part: str) -> None:
    name = f"{LAYER_2}.0.w1.{part}"
    message = refused(packed, lambda t: t.update({name: ("F8_E8M0", t[name][1], t[name][2])}))
    assert f"{name} is stored as F8_E8M0; expected U8" in message


HALVES: dict[str, tuple[list[str], list[str], str]] = {
    "no scales": (["weight_scale"], [], "weight_packed"),
    "no codes": (["weight_packed"], [], "weight_scale"),
    "twice": ([], ["weight"], "weight and weight_packed and weight_scale"),
    "weight with scales": (["weight_packed"], ["weight"], "weight and weight_scale"),
}


@pytest.mark.parametrize(("dropped", "added", "found"), HALVES.values(), ids=HALVES.keys())
def test_an_expert_stored_by_halves_is_refused(packed: Path, dropped: list[str], added: list[str], found: str) -> None:
    def change(tensors: Tensors) -> None:
        for part in dropped:
            del tensors[f"{LAYER_2}.4.w3.{part}"]
        for part in added:
            tensors[f"{LAYER_2}.4.w3.{part}"] = ("BF16", [32, 64], bytes(4096))

    assert f"{LAYER_2}.4.w3 is stored as {found}; expected weight alone, or" in refused(packed, change)


def test_a_configuration_of_another_size_is_refused(plain: Path) -> None:
    def grow(config: dict[str, Json]) -> None:
        text = config["text_config"]
        assert isinstance(text, dict)
        text["num_experts"] = 7

    edit_json(plain / "config.json", grow)
    with pytest.raises(InputError, match=r"lacks 6 of 160 tensors, first .*experts\.6\.w1\.weight"):
        open_checkpoint(plain)
