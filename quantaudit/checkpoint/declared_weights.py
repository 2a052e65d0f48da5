"""The `weights` of a group of a `quantization_config`: from a packing to its settings and back.

    num_bits, type          the element format
    strategy                tensor, channel, group with group_size, block with block_structure; tensor_group is a group
                            under a scale of the whole matrix (NVFP4)
    scale_dtype             of formats whose scales have 8 bits

Source: compressed-tensors 0.20.1, `QuantizationArgs`; for `modelopt-nvfp4` the export of nvidia-modelopt 0.47.
"""

from __future__ import annotations

from quantaudit.checkpoint.config_fields import Fields
from quantaudit.checkpoint.packed import (
    INTEGERS,
    MODELOPT_NVFP4,
    MXFP4,
    MXFP8,
    NVFP4,
    Grain,
    PackedFormat,
    Packing,
)
from quantaudit.core.format import E4M3, FormatKind
from quantaudit.core.scheme import PerBlock, PerChannel, PerGroup, PerTensor
from quantaudit.core.serial import Json

_FIXED_PACKINGS = {packing.format: packing for packing in (MXFP4, NVFP4, MXFP8, MODELOPT_NVFP4)}
_SCALE_DTYPES: dict[PackedFormat, Json] = {
    PackedFormat.MXFP4: "torch.uint8",
    PackedFormat.MXFP8: "torch.uint8",
    PackedFormat.NVFP4: "torch.float8_e4m3fn",
}
# How scales were observed says nothing about how codes are decoded.
_OBSERVED: dict[str, Json] = {"observer": "minmax", "observer_kwargs": {}}


def export_weights(packing: Packing) -> dict[str, Json]:
    """Returns the settings of a packing, every key written out."""
    settings: dict[str, Json] = {
        "actorder": None,
        "block_structure": None,
        "dynamic": False,
        "group_size": None,
        "num_bits": packing.element.bits,
        **_OBSERVED,
        "strategy": packing.granularity.kind,
        "symmetric": True,
        "type": "int" if packing.element.kind is FormatKind.INTEGER else "float",
    }
    match packing.granularity:
        case PerGroup(size=size):
            settings["group_size"] = size
        case PerBlock(rows=rows, cols=cols):
            settings["block_structure"] = [rows, cols]
    if packing.format is PackedFormat.NVFP4:
        settings["strategy"] = "tensor_group"
    if packing.format in _SCALE_DTYPES:
        settings |= {"scale_dtype": _SCALE_DTYPES[packing.format], "zp_dtype": None}
    if packing.format is PackedFormat.MODELOPT_NVFP4:
        return {key: settings[key] for key in ("dynamic", "group_size", "num_bits", "type")}
    return settings


def parse_weights(weights: Fields, declared: PackedFormat) -> Packing:
    """Reads the `weights` of a group.

    Raises:
        InputError: If they declare anything that the format does not hold.
    """
    for key in ("num_bits", "type"):
        weights.value(key)
    packing = _FIXED_PACKINGS.get(declared) or _packing(weights, declared)
    wanted = export_weights(packing)
    if declared in _FIXED_PACKINGS:
        weights.value("group_size")
    weights.require({key: value for key, value in wanted.items() if key not in _OBSERVED} | {"zp_dtype": None})
    weights.refuse_unknown(wanted.keys() | _OBSERVED.keys() | {"scale_dtype", "zp_dtype"})
    return packing


def _packing(weights: Fields, declared: PackedFormat) -> Packing:
    if declared is PackedFormat.FP8:
        return Packing(format=declared, element=E4M3, granularity=_granularity(weights))
    bits = weights.size("num_bits", high=8)
    if bits not in INTEGERS:
        weights.refuse("num_bits", " or ".join(map(str, INTEGERS)))
    granularity = _granularity(weights)
    if isinstance(granularity, PerTensor | PerBlock):
        weights.refuse("strategy", "group or channel")
    return Packing(format=declared, element=INTEGERS[bits], granularity=granularity)


def _granularity(weights: Fields) -> Grain:
    match weights.value("strategy"):
        case "tensor":
            return PerTensor()
        case "channel":
            return PerChannel()
        case "group":
            return PerGroup(size=weights.size("group_size"))
        case "block":
            rows, cols = _block(weights)
            return PerBlock(rows=rows, cols=cols)
    weights.refuse("strategy", "tensor, channel, group or block")


def _block(weights: Fields) -> tuple[int, int]:
    block = weights.integers("block_structure", 1 << 16)
    if len(block) != 2:
        weights.refuse("block_structure", "rows and columns")
    return block[0], block[1]
