"""`quantization_config`: what a checkpoint says about its own precision. What is true, `precision` finds out.

The released ignore list is incomplete on purpose here too: it does not cover the latent projections and the
projections of the attention residuals, which are stored in bf16 all the same. Whether a tensor is quantized is decided
by the presence of `weight_packed`, never by this list.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from quantaudit.checkpoint.config_fields import Fields
from quantaudit.core.serial import Json

_WEIGHTS: dict[str, Json] = {
    "actorder": None,
    "block_structure": None,
    "dynamic": False,
    "group_size": 32,
    "num_bits": 4,
    "observer": "minmax",
    "observer_kwargs": {},
    "scale_dtype": "torch.uint8",
    "strategy": "group",
    "symmetric": True,
    "type": "float",
    "zp_dtype": None,
}
# How scales were observed says nothing about how codes are decoded.
_DECODING = {key: value for key, value in _WEIGHTS.items() if not key.startswith("observer")}
_FIXED: dict[str, Json] = {
    "quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized",
    "quantization_status": "compressed",
    "kv_cache_scheme": None,
}
_EMPTY: dict[str, Json] = {"sparsity_config": {}, "transform_config": {}}
_READ_OR_HARMLESS = frozenset({"config_groups", "ignore", "version", "global_compression_ratio"})
_IGNORE: list[Json] = [
    r"re:.*self_attn.*",
    r"re:.*shared_experts.*",
    r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    r"re:.*lm_head.*",
    r"re:.*vision_tower.*",
    r"re:.*mm_projector.*",
]


class PackedFormat(StrEnum):
    """Storage formats of quantized weights that can be read."""

    MXFP4 = "mxfp4-pack-quantized"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the configuration declares.

    Attributes:
        format: Storage format of the quantized weights.
        has_activations: Whether quantized activations are declared too (the released file declares none).
    """

    format: PackedFormat
    has_activations: bool


def parse_declared(fields: Fields) -> Declared:
    """Reads a `quantization_config`.

    Raises:
        InputError: If it declares anything but MXFP4 in groups of 32 as compressed-tensors packs it.
    """
    fields.require(_FIXED | _EMPTY)
    fields.value("quant_method")
    fields.value("format")
    fields.refuse_unknown(_FIXED.keys() | _EMPTY.keys() | _READ_OR_HARMLESS)
    groups = fields.section("config_groups")
    group = groups.section(_only_group(groups))
    group.require({"output_activations": None, "format": PackedFormat.MXFP4.value})
    group.refuse_unknown({"format", "input_activations", "output_activations", "targets", "weights"})
    weights = group.section("weights")
    weights.require(_DECODING)
    for key in ("num_bits", "type", "group_size"):
        weights.value(key)
    weights.refuse_unknown(_WEIGHTS.keys())
    return Declared(format=PackedFormat.MXFP4, has_activations=group.values.get("input_activations") is not None)


def export_declared() -> dict[str, Json]:
    """Returns the `quantization_config` of the released layout, without activations."""
    group: dict[str, Json] = {
        "format": PackedFormat.MXFP4.value,
        "input_activations": None,
        "output_activations": None,
        "targets": ["Linear"],
        "weights": dict(_WEIGHTS),
    }
    return {
        **_FIXED,
        "config_groups": {"group_0": group},
        "global_compression_ratio": None,
        "ignore": list(_IGNORE),
    }


def _only_group(groups: Fields) -> str:
    names = list(groups.values)
    if len(names) != 1:
        groups.refuse_unknown({"group_0"})
        groups.value("group_0")
    return names[0]
