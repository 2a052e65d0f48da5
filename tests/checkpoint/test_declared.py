"""Every packing is declared as compressed-tensors writes it and read back; junk in a declaration is refused."""

from __future__ import annotations

import copy
import itertools
import json
import random

import pytest

from quantaudit.checkpoint.config_fields import Fields
from quantaudit.checkpoint.declared import Declared, parse_declared
from quantaudit.checkpoint.declaring import declare_packings
from quantaudit.checkpoint.header import DType, TensorEntry
from quantaudit.checkpoint.names import ExpertStack, Part, Role
from quantaudit.checkpoint.packed import (
    INTEGERS,
    MODELOPT_NVFP4,
    MXFP4,
    MXFP8,
    NVFP4,
    PackedFormat,
    Packing,
    check_parts,
    find_packing,
)
from quantaudit.core.errors import InputError
from quantaudit.core.format import E4M3
from quantaudit.core.scheme import PerBlock, PerChannel, PerGroup, PerTensor
from quantaudit.core.serial import Json

STACKS = tuple(ExpertStack(layer, role) for layer in (1, 3, 11) for role in Role)
PACKINGS = (
    *(MXFP4, MXFP8, NVFP4, MODELOPT_NVFP4),
    *(
        Packing(format=PackedFormat.INTEGERS, element=element, granularity=grain)
        for element in INTEGERS.values()
        for grain in (PerGroup(size=32), PerGroup(size=128), PerChannel())
    ),
    *(
        Packing(format=PackedFormat.FP8, element=E4M3, granularity=grain)
        for grain in (PerTensor(), PerChannel(), PerBlock(rows=128, cols=128))
    ),
)


def declare(*packings: Packing, missing: int = 0) -> dict[str, Json]:
    """Returns the declaration of stacks packed in these ways in turn, some of them not at all."""
    packed = dict(zip(STACKS[missing:], itertools.cycle(packings), strict=False))
    return declare_packings(packed, is_partial=missing > 0)


def parse(values: dict[str, Json]) -> Declared:
    """Returns what a declaration says."""
    return parse_declared(Fields(where="config.json", values=values))


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
@pytest.mark.parametrize("missing", [0, 2])
def test_what_is_declared_is_read_back(packing: Packing, missing: int) -> None:
    read = parse(declare(packing, missing=missing))
    assert read.packings == (packing,) and read.format is packing.format and not read.has_activations
    assert [read.covers(stack) for stack in STACKS] == [n >= missing for n in range(len(STACKS))]


@pytest.mark.parametrize("packing", [p for p in PACKINGS if p is not MODELOPT_NVFP4], ids=str)
def test_compressed_tensors_understands_the_declaration(packing: Packing) -> None:
    quantization = pytest.importorskip("compressed_tensors.quantization")
    config = quantization.QuantizationConfig.model_validate(declare(packing))
    args = config.config_groups["group_0"].weights
    presets = {
        PackedFormat.MXFP4: "MXFP4A16",
        PackedFormat.MXFP8: "MXFP8A16",
        PackedFormat.NVFP4: "NVFP4A16",
        PackedFormat.INTEGERS: f"W{packing.element.bits}A16",
    }
    grains = {PerTensor: "FP8", PerChannel: "FP8_DYNAMIC", PerBlock: "FP8_BLOCK"}
    name = presets.get(packing.format) or grains[type(packing.granularity)]
    wanted = quantization.preset_name_to_scheme(name, ["Linear"]).weights
    same = ["num_bits", "type", "symmetric", "dynamic", "block_structure", "scale_dtype", "actorder"]
    if packing.format is not PackedFormat.INTEGERS:
        same += ["strategy", "group_size"]
    assert {key: getattr(args, key) for key in same} == {key: getattr(wanted, key) for key in same}
    assert config.format == packing.format and config.quantization_status == "compressed"


def test_several_formats_are_a_mixture_and_each_names_its_experts() -> None:
    match = pytest.importorskip("compressed_tensors.utils.match").match_name
    three = PACKINGS[6]
    values = declare(MXFP4, three, missing=1)
    read = parse(values)
    assert read.format is PackedFormat.MIXED and set(read.packings) == {MXFP4, three}
    groups = values["config_groups"]
    assert isinstance(groups, dict)
    for number, stack in enumerate(STACKS):
        name = f"language_model.model.layers.{stack.layer}.block_sparse_moe.experts.7.{stack.role}"
        hits = [g for g in json.loads(json.dumps(groups)).values() if any(match(name, t) for t in g["targets"])]
        assert len(hits) == (number >= 1)
        assert not hits or hits[0]["format"] == (MXFP4.format, three.format)[(number - 1) % 2]


def test_two_tools_cannot_declare_one_checkpoint() -> None:
    with pytest.raises(InputError, match="modelopt-nvfp4 alone"):
        declare(MODELOPT_NVFP4, MXFP4)


JUNK: tuple[Json, ...] = (None, 0, -1, 3, 1 << 40, 1e99, "x", "int", True, [], [1], [1, 2, 3], {}, {"a": 1}, ["re:.*"])


def places(value: Json, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Lists the paths of every value in nested objects."""
    found = [path] if path else []
    for key, inner in value.items() if isinstance(value, dict) else ():
        found += places(inner, (*path, key))
    return found


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_junk_in_a_declaration_is_refused_or_harmless(packing: Packing) -> None:
    good = declare(packing)
    num_refused = 0
    for path in places(good):
        for junk in JUNK:
            values = copy.deepcopy(good)
            inner: Json = values
            for key in path[:-1]:
                assert isinstance(inner, dict)
                inner = inner[key]
            assert isinstance(inner, dict)
            inner[path[-1]] = junk
            try:
                assert isinstance(parse(values), Declared)
            except InputError as error:
                num_refused += 1
                assert error.expected and error.fix
    assert num_refused > 50


def test_tensors_of_any_shape_are_refused_or_packed() -> None:
    rng = random.Random(0)
    sets = (
        (Part.PACKED, Part.SCALE),
        (Part.PACKED, Part.SCALE, Part.SHAPE),
        (Part.PACKED, Part.SCALE, Part.GLOBAL),
        (Part.WEIGHT, Part.SCALE),
        (Part.WEIGHT, Part.SCALE_INV),
        (Part.WEIGHT, Part.SCALE, Part.ABOVE),
    )
    num_refused = num_packed = 0
    for _ in range(4000):
        entries = {
            part: TensorEntry(
                name=f"experts.0.w1.{part}",
                dtype=rng.choice(list(DType)),
                shape=tuple(rng.choice((0, 1, 2, 3, 12, 16, 32, 64)) for _ in range(rng.choice((0, 1, 2, 2, 2, 3)))),
                start=0,
                num_bytes=0,
            )
            for part in rng.choice(sets)
        }
        try:
            check_parts(entries, find_packing(entries, 32, 64), 32, 64)
            num_packed += 1
        except InputError as error:
            num_refused += 1
            assert error.expected and error.fix
    assert num_refused > 3900 and num_packed < 100
