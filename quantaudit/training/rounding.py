"""Rounds a model's experts by GPTQ, layer after layer, each on the inputs that the layers before it now give.

A model rounded to nearest is gone through in the order of a forward: w1 and w3 of a layer, which read the same rows,
then w2, whose rows they make. What a stack is given is caught at the tap while calibration items of the training split
run through, so it is what the model in its present state gives: everything before already has its final codes, and
nothing behind has an influence. Other modules that the rules match stay rounded to nearest.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from quantaudit.core.batch import Sequence
from quantaudit.core.errors import InputError
from quantaudit.core.recipe import Gptq, Recipe
from quantaudit.core.site import Point, Site
from quantaudit.engines.native import NativeEngine
from quantaudit.engines.quantized import QuantizedGroupedLinear, quantize_rows
from quantaudit.engines.realization import Realization, apply_recipe, matmuls
from quantaudit.engines.stored import StoredTensor, store
from quantaudit.model.linear import GroupedLinear
from quantaudit.probes.encoding import encode_pair
from quantaudit.probes.world import EASY_FAMILIES, build_world, sample_train
from quantaudit.training.export import choose_packings
from quantaudit.training.gptq import InputCollector, SeenInputs, check_library, round_stack

_BATCH = 96
_FAMILIES = (*EASY_FAMILIES, "two-step")  # the lengths of long-recall are never trained
_CPU = torch.device("cpu")

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounded:
    """A model whose experts were rounded by GPTQ.

    Attributes:
        realization: As it is served; `stored` holds the codes.
        num_matrices: Expert matrices under the rules.
        num_short: Those that saw fewer rows than they have columns, at least one.
        num_nearest: Those that keep the codes of round-to-nearest: without rows, or with a hopeless Hessian.
    """

    realization: Realization
    num_matrices: int
    num_short: int
    num_nearest: int


class _Stack(NamedTuple):
    """A stack to be rounded: its name, where it is served, and its master."""

    name: str
    served: QuantizedGroupedLinear
    master: GroupedLinear


def round_by_gptq(
    hi: Realization, recipe: Recipe, *, sequences: list[Sequence] | None = None, progress: Progress | None = None
) -> Rounded:
    """Returns hi under a recipe, with the codes of its experts chosen by GPTQ.

    Args:
        hi: Its experts are not quantized.
        recipe: With a [gptq].
        sequences: What runs through; items of the training split as the recipe says when `None`.
        progress: Told (stage, done, total).

    Raises:
        InputError: If the library is missing, hi is stored quantized, the rules give no expert a weight scheme or one
            that no checkpoint holds, or as `apply_recipe`.
    """
    check_library()
    gptq = gptq_of(recipe)
    _check_masters(hi)
    given = calibration_items(gptq) if sequences is None else sequences
    lo = apply_recipe(hi, recipe)
    _check_layouts(lo)
    stored, num_matrices, num_short, num_nearest = dict(lo.stored), 0, 0, 0
    sites = _in_order(hi, lo, recipe)
    for done, (site, stacks) in enumerate(sites, start=1):
        seen = catch_inputs(lo, site, stacks[0].served, given)
        for name, served, master in stacks:
            assert isinstance(served.stored, StoredTensor)
            rounded = round_stack(master.weight.detach(), served.stored.scheme, seen, dampening=gptq.dampening)
            stored[name] = served.stored = store(rounded.tensor)
            num_matrices += len(seen.rows_E)
            num_short += sum(0 < rows < master.weight.shape[-1] for rows in seen.rows_E)
            num_nearest += rounded.num_nearest
        if progress is not None:
            progress("round", done, len(sites))
    return Rounded(
        realization=replace(lo, stored=stored),
        num_matrices=num_matrices,
        num_short=num_short,
        num_nearest=num_nearest,
    )


def gptq_of(recipe: Recipe) -> Gptq:
    """Returns how a recipe rounds.

    Raises:
        InputError: If it has no [gptq].
    """
    if recipe.gptq is None:
        raise InputError(f"recipe {recipe.name!r} has no [gptq]", expected="a recipe with one", fix="choose another")
    return recipe.gptq


def _check_masters(hi: Realization) -> None:
    if hi.stored:
        raise InputError(
            f"a model with {len(hi.stored)} expert stacks stored in {next(iter(hi.stored.values())).scheme.name}",
            expected="a model whose experts are not quantized: GPTQ starts from their weights",
            fix="start from the bf16 checkpoint",
        )


def _check_layouts(lo: Realization) -> None:
    """Refuses stacks that an export would leave as masters, from which nobody makes these codes again."""
    held = dict(lo.stored)
    for name in sorted(held.keys() - choose_packings(held).keys()):
        raise InputError(
            f"{name} in {held[name].scheme.name}, with codes of its own",
            expected="a scheme whose codes a packed checkpoint holds, such as int4-g32-div7.5",
            fix="choose one, or leave [gptq] out",
        )


def calibration_items(gptq: Gptq) -> list[Sequence]:
    """Draws items of the training split, equally many of every family that is trained."""
    world = build_world()
    rng = random.Random(f"gptq/{gptq.seed}")
    items = [sample_train(world, family, rng) for family in _FAMILIES for _ in range(gptq.items_per_family)]
    return sorted((encode_pair(item.prompt, item.response) for item in items), key=lambda s: len(s.tokens))


def _in_order(hi: Realization, lo: Realization, recipe: Recipe) -> list[tuple[Site, list[_Stack]]]:
    """Returns the stacks to be rounded by the site of their input, in the order of a forward."""
    masters = {name: module for name, module in matmuls(hi.model) if isinstance(module, GroupedLinear)}
    sites: dict[Site, list[_Stack]] = {}
    for name, served in matmuls(lo.model):
        if isinstance(served, QuantizedGroupedLinear) and isinstance(served.stored, StoredTensor):
            point = Point.EXPERT_HIDDEN if name.endswith(".w2") else Point.EXPERT_INPUT
            site = Site(int(name.split(".")[1]), point)
            sites.setdefault(site, []).append(_Stack(name, served, masters[name]))
    if not sites:
        raise InputError(
            f"recipe {recipe.name!r}, whose rules give no routed expert a weight scheme",
            expected="a rule such as one for layers.*.experts.w[123] with a weight",
            fix="add it, or leave [gptq] out",
        )
    return sorted(sites.items(), key=lambda pair: (pair[0].layer, pair[0].point is Point.EXPERT_HIDDEN))


def catch_inputs(
    realization: Realization, site: Site, reader: QuantizedGroupedLinear, sequences: list[Sequence]
) -> SeenInputs:
    """Runs the sequences and adds up what the experts of one site are given, after the scheme of their input.

    Args:
        realization: In its present state.
        site: EXPERT_INPUT or EXPERT_HIDDEN of a layer.
        reader: A stack that reads there: it says how wide rows are, and how they are quantized.
        sequences: At least one.
    """
    engine = NativeEngine(realization, _CPU)
    num_experts, _, width = reader.stored.shape
    collector = InputCollector(num_experts, width)
    for batch in _batches(sequences):
        trace = engine.forward(batch, observe=frozenset({Point.TOP_K_IDS, site.point}))
        ids_NK = trace.sites[Site(site.layer, Point.TOP_K_IDS)]
        counts_E: list[int] = torch.bincount(ids_NK.flatten(), minlength=num_experts).tolist()
        collector.add(quantize_rows(trace.sites[site], reader.activation), counts_E)
    return collector.seen()


def _batches(sequences: list[Sequence]) -> Iterator[list[Sequence]]:
    for start in range(0, len(sequences), _BATCH):
        yield sequences[start : start + _BATCH]
