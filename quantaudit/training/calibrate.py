"""Chooses what a recipe leaves open: which stacks are kept in a better scheme.

A stack suffers by the squared error of its weights, expert by expert times the share of rows that the expert gets:

    suffering(stack) = sum_e load_e ||W_e - Q(W_e)||^2

The load is hi's, on probes of the select split. The choice is a recipe in which the chosen stacks have rules of their
own in front of the others; nothing else of the recipe changes.

Legend: E experts, O out, I in.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.probe import ProbeSet, Split
from quantaudit.core.recipe import Calibration, Recipe, Rule
from quantaudit.core.site import Point, Site
from quantaudit.engines.native import NativeEngine
from quantaudit.engines.realization import Realization, assign_rules, matmuls
from quantaudit.evaluation.plan import plan_batches
from quantaudit.model.linear import GroupedLinear
from quantaudit.numerics import fused_fake_quantize, get_scheme
from quantaudit.probes.world import FAMILIES, default_probes

_BATCH = 96


def calibrate(hi: Realization, recipe: Recipe, device: torch.device, *, probes: ProbeSet | None = None) -> Recipe:
    """Returns the recipe with what its calibration chooses; the recipe itself where it has none.

    Args:
        hi: The reference.
        recipe: The recipe.
        device: Where hi is.
        probes: Probes of the select split; as many as the recipe says when `None`.

    Raises:
        InputError: If there are not more stacks than are to be kept.
    """
    calibration = recipe.calibration
    if calibration is None:
        return recipe
    suffering = rank_stacks(hi, recipe, device, probes or _select_probes(calibration))
    if len(suffering) <= calibration.stacks:
        raise InputError(
            f"recipe {recipe.name!r}: {calibration.stacks} stacks to keep in {calibration.scheme}",
            expected=f"fewer than the {len(suffering)} stacks that the rules quantize",
            fix="lower stacks in [calibration]",
        )
    worst = sorted(suffering, key=lambda name: (-suffering[name], name))[: calibration.stacks]
    kept = tuple(_keep(name, calibration, recipe) for name in sorted(worst))
    chosen = ", ".join(sorted(worst))
    note = f"Kept in {calibration.scheme}, chosen on the select split by weight error times load: {chosen}."
    return recipe.model_copy(update={"rules": kept + recipe.rules, "notes": (*recipe.notes, note)})


def _keep(name: str, calibration: Calibration, recipe: Recipe) -> Rule:
    rule = recipe.rule_for(name)
    return Rule(match=name, weight=calibration.scheme, activation=None if rule is None else rule.activation)


def _select_probes(calibration: Calibration) -> ProbeSet:
    return default_probes(Split.SELECT, dict.fromkeys(FAMILIES, calibration.probes_per_family))


def rank_stacks(hi: Realization, recipe: Recipe, device: torch.device, probes: ProbeSet) -> dict[str, float]:
    """Returns how much every stack that the rules quantize suffers, by module name."""
    stacks = {name: module for name, module in matmuls(hi.model) if isinstance(module, GroupedLinear)}
    load = measure_load(hi, device, probes)
    suffering: dict[str, float] = {}
    for name, rule in assign_rules(list(stacks), recipe).items():
        if rule.weight is not None:
            error_E = weight_error(stacks[name].weight.detach(), rule.weight)
            suffering[name] = float((error_E * load[int(name.split(".")[1])]).sum())
    return suffering


def weight_error(weight_EOI: Tensor, scheme: str) -> Tensor:
    """Returns the squared error of every expert, `[E]`, float64."""
    wide = weight_EOI.float().contiguous()
    difference = (wide - fused_fake_quantize(wide, get_scheme(scheme))).double()
    return difference.square().sum((1, 2))


def measure_load(hi: Realization, device: torch.device, probes: ProbeSet) -> Mapping[int, Tensor]:
    """Returns, by layer, the share of rows that each expert gets, `[E]`, float64."""
    engine = NativeEngine(hi, device)
    num_experts = hi.model.config.num_experts
    counts: dict[int, Tensor] = {}
    for batch in plan_batches(probes, _BATCH):
        trace = engine.forward(batch.sequences, observe=frozenset({Point.TOP_K_IDS}))
        for site, ids_NK in trace.sites.items():
            assert isinstance(site, Site)
            found = torch.bincount(ids_NK.flatten(), minlength=num_experts).double()
            counts[site.layer] = counts.get(site.layer, torch.zeros_like(found)) + found
    return {layer: count / count.sum() for layer, count in counts.items()}
