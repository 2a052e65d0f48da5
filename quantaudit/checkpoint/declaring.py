"""From the way every expert stack is packed to the `quantization_config` that declares it.

One way gives the block of the release: one group, all linear modules, and the incomplete ignore list. Several ways, or
stacks that are meant to stay in bf16, give one group a way that names its experts.
"""

from __future__ import annotations

from collections.abc import Mapping

from quantaudit.checkpoint.declared import MODELOPT_METHOD
from quantaudit.checkpoint.declared_weights import export_weights
from quantaudit.checkpoint.names import ExpertStack, Role
from quantaudit.checkpoint.packed import MODELOPT_NVFP4, MXFP4, PackedFormat, Packing
from quantaudit.core.errors import InputError
from quantaudit.core.serial import Json

_IGNORE: list[Json] = [
    r"re:.*self_attn.*",
    r"re:.*shared_experts.*",
    r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    r"re:.*lm_head.*",
    r"re:.*vision_tower.*",
    r"re:.*mm_projector.*",
]
_LINEAR: list[Json] = ["Linear"]


def declare_release() -> dict[str, Json]:
    """Returns the `quantization_config` of the released layout, without activations."""
    return _compressed_tensors({MXFP4: _LINEAR})


def declare_packings(packings: Mapping[ExpertStack, Packing], *, is_partial: bool) -> dict[str, Json]:
    """Returns a `quantization_config`.

    Args:
        packings: How stacks are packed; those that are left out are not.
        is_partial: Whether some are meant to be left out, so that those that are not have to be named.

    Raises:
        InputError: If two tools would have to declare them.
    """
    ways = sorted(set(packings.values()), key=str)
    if len(ways) == 1 and not is_partial:
        targets = {ways[0]: _LINEAR}
    else:
        targets = {way: _targets([stack for stack, one in packings.items() if one == way]) for way in ways}
    if MODELOPT_NVFP4 not in targets:
        return _compressed_tensors(targets)
    if len(ways) > 1:
        raise InputError(
            f"experts packed as {' and '.join(map(str, ways))}",
            expected=f"{MODELOPT_NVFP4.format} alone: no configuration declares it beside others",
            fix="leave some of them in bf16",
        )
    return _modelopt(targets[MODELOPT_NVFP4])


def _compressed_tensors(targets: Mapping[Packing, list[Json]]) -> dict[str, Json]:
    formats = {packing.format for packing in targets}
    return {
        "quant_method": "compressed-tensors",
        "format": (next(iter(formats)) if len(formats) == 1 else PackedFormat.MIXED).value,
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "config_groups": {
            f"group_{number}": {
                "format": packing.format.value,
                "input_activations": None,
                "output_activations": None,
                "targets": list(named),
                "weights": export_weights(packing),
            }
            for number, (packing, named) in enumerate(targets.items())
        },
        "global_compression_ratio": None,
        "ignore": list(_IGNORE),
    }


def _modelopt(targets: list[Json]) -> dict[str, Json]:
    group: dict[str, Json] = {"targets": list(targets), "weights": export_weights(MODELOPT_NVFP4)}
    return {
        "quant_method": MODELOPT_METHOD,
        "quant_algo": "W4A16_NVFP4",
        "config_groups": {"group_0": group},
        "ignore": list(_IGNORE),
    }


def _targets(stacks: list[ExpertStack]) -> list[Json]:
    """Returns patterns that match the experts of these stacks and no others, one a role."""
    found: list[Json] = []
    for role in Role:
        layers = "|".join(str(stack.layer) for stack in sorted(stacks) if stack.role is role)
        if layers:
            found.append(rf"re:.*layers\.({layers})\.block_sparse_moe\.experts\..*\.{role}$")
    return found
