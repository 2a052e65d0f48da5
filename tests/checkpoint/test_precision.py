"""The precision map says what is stored, and every way in which that differs from what is declared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from quantaudit.checkpoint.declared import PackedFormat
from quantaudit.checkpoint.names import Role
from quantaudit.checkpoint.precision import PrecisionMap, inspect_checkpoint
from quantaudit.core.errors import InputError
from quantaudit.core.serial import Json
from tests.checkpoint import released
from tests.checkpoint.tiny import LAYER_2, WEIGHTS, edit_json, edit_tensors

Tensors = dict[str, tuple[str, list[int], bytes]]
UNPACKED = ("BF16", [32, 64], bytes(4096))


def declare(folder: Path, declared: Json) -> None:
    """Sets or removes the quantization_config of a checkpoint."""

    def change(config: dict[str, Json]) -> None:
        text = cast("dict[str, Json]", config["text_config"])
        text.pop("quantization_config", None)
        if declared is not None:
            text["quantization_config"] = declared

    edit_json(folder / "config.json", change)


def changed(folder: Path, change: Callable[[Tensors], object]) -> PrecisionMap:
    """Returns the map after a change to the tensors."""
    edit_tensors(folder / WEIGHTS, change)
    return inspect_checkpoint(folder)


def unpack_expert(tensors: Tensors, expert: int, role: str) -> None:
    """Replaces the codes and scales of one expert by zeros in bf16."""
    del tensors[f"{LAYER_2}.{expert}.{role}.weight_packed"], tensors[f"{LAYER_2}.{expert}.{role}.weight_scale"]
    tensors[f"{LAYER_2}.{expert}.{role}.weight"] = UNPACKED


@pytest.mark.parametrize(
    ("name", "declared", "packed", "bits"),
    [("plain", None, 0, 16.0), ("packed", PackedFormat.MXFP4, 36, 4.25), ("sharded", PackedFormat.MXFP4, 36, 4.25)],
)
def test_a_written_checkpoint_is_as_declared(
    written: Path, name: str, declared: PackedFormat | None, packed: int, bits: float
) -> None:
    precision = inspect_checkpoint(written / name)
    assert precision.as_declared and precision.findings == ()
    assert (precision.declared, precision.num_packed, precision.num_matrices) == (declared, packed, 36)
    assert precision.bits_per_weight == bits and {row.bits_per_weight for row in precision.rows} == {bits}
    assert [(row.layer, row.role) for row in precision.rows] == [(layer, role) for layer in (2, 4) for role in Role]
    assert {row.num_experts for row in precision.rows} == {6}


def test_declared_but_not_packed_is_a_finding(plain: Path) -> None:
    declare(plain, released.quantization())
    assert inspect_checkpoint(plain).findings == (
        "The configuration declares mxfp4-pack-quantized, but 36 of 36 expert matrices are stored unquantized.",
    )


def test_packed_but_not_declared_is_a_finding(packed: Path) -> None:
    declare(packed, None)
    precision = inspect_checkpoint(packed)
    assert precision.findings == (
        "The configuration declares no quantization, but 36 of 36 expert matrices are stored packed.",
    )
    assert not precision.as_declared and precision.declared is None


def test_one_expert_left_in_bf16_is_found_in_its_row(packed: Path) -> None:
    precision = changed(packed, lambda tensors: unpack_expert(tensors, 3, "w1"))
    row = next(r for r in precision.rows if (r.layer, r.role) == (2, Role.GATE))
    assert (row.num_packed, row.num_bfloat16) == (5, 1) and row.bits_per_weight == (5 * 4.25 + 16) / 6
    assert precision.num_packed == 35
    assert precision.findings == (
        "The configuration declares mxfp4-pack-quantized, but 1 of 36 expert matrices are stored unquantized.",
    )


def test_missing_experts_are_a_finding_and_not_counted_as_unquantized(packed: Path) -> None:
    def drop(tensors: Tensors) -> None:
        for part in ("weight_packed", "weight_scale"):
            del tensors[f"{LAYER_2}.0.w2.{part}"]

    precision = changed(packed, drop)
    assert precision.num_missing == 1 and precision.bits_per_weight == 4.25
    assert precision.findings == ("1 of 36 expert matrices are missing.",)


def test_an_expert_in_fp32_is_a_finding(plain: Path) -> None:
    precision = changed(plain, lambda t: t.update({f"{LAYER_2}.0.w1.weight": ("F32", [32, 64], bytes(8192))}))
    assert precision.findings == ("1 of 36 expert matrices are stored in fp32; the layout has bf16.",)


def test_packed_tensors_outside_the_experts_are_a_finding(packed: Path) -> None:
    name = "language_model.model.layers.1.self_attn.o_proj.weight_packed"
    precision = changed(packed, lambda tensors: tensors.update({name: ("U8", [1], b"x")}))
    assert precision.findings == (f"1 tensors outside the routed experts are stored packed, first '{name}'.",)


def test_an_expert_stored_by_halves_is_an_error(packed: Path) -> None:
    with pytest.raises(InputError, match="w1 is stored as weight_packed; expected"):
        changed(packed, lambda tensors: tensors.pop(f"{LAYER_2}.0.w1.weight_scale"))


def test_an_expert_in_another_dtype_is_an_error(plain: Path) -> None:
    with pytest.raises(InputError, match=r"w1\.weight is stored as F8_E4M3; expected BF16 or F32"):
        changed(plain, lambda t: t.update({f"{LAYER_2}.0.w1.weight": ("F8_E4M3", [32, 64], bytes(2048))}))


def test_the_map_survives_serialisation(packed: Path) -> None:
    declare(packed, None)
    precision = inspect_checkpoint(packed)
    assert PrecisionMap.from_json(precision.to_json()) == precision
