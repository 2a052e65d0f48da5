"""`quantization_config`: what a checkpoint says about its own precision. What is true, `precision` finds out.

The released ignore list is incomplete on purpose here too: it does not cover the latent projections and the
projections of the attention residuals, which are stored in bf16 all the same. Whether a tensor is quantized is decided
by the tensors that are there, never by this list. Where the experts are packed in several ways, or only some of them,
each group of the configuration names its layers and roles in the pattern that `declaring` writes; other targets are
taken for all experts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quantaudit.checkpoint.config_fields import Fields
from quantaudit.checkpoint.declared_weights import parse_weights
from quantaudit.checkpoint.names import ExpertStack, Role
from quantaudit.checkpoint.packed import MODELOPT_NVFP4, Packing
from quantaudit.checkpoint.packed import PackedFormat as PackedFormat
from quantaudit.core.serial import Json

_FIXED: dict[str, Json] = {
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
    "kv_cache_scheme": None,
}
_EMPTY: dict[str, Json] = {"sparsity_config": {}, "transform_config": {}}
_READ_OR_HARMLESS = frozenset({"config_groups", "format", "ignore", "version", "global_compression_ratio"})
_GROUP_KEYS = frozenset({"format", "input_activations", "output_activations", "targets", "weights"})
MODELOPT_METHOD = "modelopt"
_MODELOPT_FIXED: dict[str, Json] = {"quant_method": MODELOPT_METHOD, "kv_cache_scheme": None}
_MODELOPT_ALGORITHMS = ("NVFP4", "W4A16_NVFP4")
_MODELOPT_KEYS = frozenset({"quant_algo", "config_groups", "ignore", "producer"})
_TARGET = re.compile(
    r"re:\.\*layers\\\.\(([0-9]{1,6}(?:\|[0-9]{1,6})*)\)\\\.block_sparse_moe\\\.experts\\\.\.\*\\\.(w[123])\$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredGroup:
    """One group of the configuration.

    Attributes:
        packing: How its weights are packed.
        stacks: The experts it names; `None` for all.
    """

    packing: Packing
    stacks: frozenset[ExpertStack] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the configuration declares.

    Attributes:
        format: Storage format of the quantized weights.
        has_activations: Whether quantized activations are declared too (the released file declares none).
        groups: One a way of packing.
    """

    format: PackedFormat
    has_activations: bool
    groups: tuple[DeclaredGroup, ...]

    @property
    def packings(self) -> tuple[Packing, ...]:
        """Returns how weights are said to be packed."""
        return tuple(group.packing for group in self.groups)

    def covers(self, stack: ExpertStack) -> bool:
        """Tells whether the experts of a layer and role are declared as quantized."""
        return any(group.stacks is None or stack in group.stacks for group in self.groups)


def parse_declared(fields: Fields) -> Declared:
    """Reads a `quantization_config`.

    Raises:
        InputError: If it declares anything that `packed` does not describe.
    """
    if fields.value("quant_method") == MODELOPT_METHOD:
        return _parse_modelopt(fields)
    fields.require(_FIXED | _EMPTY)
    declared = _format(fields, fields.value("format"))
    fields.refuse_unknown(_FIXED.keys() | _EMPTY.keys() | _READ_OR_HARMLESS)
    groups = fields.section("config_groups")
    if not groups.values:
        groups.value("group_0")
    sections = [groups.section(name) for name in groups.values]
    return Declared(
        format=declared,
        has_activations=any(group.values.get("input_activations") is not None for group in sections),
        groups=tuple(_group(group, declared) for group in sections),
    )


def _format(fields: Fields, value: Json) -> PackedFormat:
    known = [one for one in PackedFormat if one is not PackedFormat.MODELOPT_NVFP4]
    if value not in known:
        fields.refuse("format", f"one of {', '.join(known)}")
    return PackedFormat(str(value))


def _group(group: Fields, outer: PackedFormat) -> DeclaredGroup:
    group.require({"output_activations": None})
    group.refuse_unknown(_GROUP_KEYS)
    stated = group.values.get("format")
    declared = outer if stated is None else _format(group, stated)
    if declared is PackedFormat.MIXED or outer not in (declared, PackedFormat.MIXED):
        group.refuse("format", f"the format of this group, {outer}" if outer is not declared else "a format of its own")
    return DeclaredGroup(packing=parse_weights(group.section("weights"), declared), stacks=_stacks(group))


def _stacks(group: Fields) -> frozenset[ExpertStack] | None:
    """Returns the experts that a group names; targets in another form are taken for all."""
    targets = group.values.get("targets")
    matches = (
        [_TARGET.fullmatch(t) if isinstance(t, str) else None for t in targets] if isinstance(targets, list) else []
    )
    found = [match for match in matches if match is not None]
    if not found or len(found) < len(matches):
        return None
    return frozenset(ExpertStack(int(layer), Role(m[2])) for m in found for layer in m[1].split("|"))


def _parse_modelopt(fields: Fields) -> Declared:
    fields.require(_MODELOPT_FIXED)
    fields.refuse_unknown(_MODELOPT_FIXED.keys() | _MODELOPT_KEYS)
    if fields.value("quant_algo") not in _MODELOPT_ALGORITHMS:
        fields.refuse("quant_algo", " or ".join(_MODELOPT_ALGORITHMS))
    groups = fields.section("config_groups")
    sections = [groups.section(name) for name in groups.values]
    found = []
    for group in sections:
        parse_weights(group.section("weights"), PackedFormat.MODELOPT_NVFP4)
        found.append(DeclaredGroup(packing=MODELOPT_NVFP4, stacks=_stacks(group)))
    return Declared(
        format=PackedFormat.MODELOPT_NVFP4,
        has_activations=any(group.values.get("input_activations") is not None for group in sections),
        groups=tuple(found),
    )
