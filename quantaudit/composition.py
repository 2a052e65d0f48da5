"""The composition root: opens checkpoints, builds hi, lo and the identity control, and hands them to the audit.

This is where torch comes in; `api` imports it only after every input has been checked.
"""

from __future__ import annotations

import platform
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from os import getloadavg

import torch

import quantaudit
from quantaudit.checkpoint.digest import digest_by_layer
from quantaudit.checkpoint.names import ExpertStack, Role
from quantaudit.checkpoint.reader import Checkpoint, open_checkpoint
from quantaudit.core.contract import Contract
from quantaudit.core.engine import WeightPair
from quantaudit.core.errors import InputError
from quantaudit.core.probe import ProbeSet
from quantaudit.core.recipe import Recipe
from quantaudit.core.report import AuditReport, Environment, RealizationInfo, RunBlock
from quantaudit.engines.native import NativeEngine
from quantaudit.engines.opening import open_realization, open_served
from quantaudit.engines.realization import (
    Realization,
    apply_recipe,
    assign_rules,
    is_same_storage,
    matmuls,
    other_values,
    parameter_readers,
    pass_through,
    round_experts,
    weight_values,
)
from quantaudit.evaluation.ladder import Step
from quantaudit.evaluation.measure import Engines
from quantaudit.evaluation.runner import Progress, Settings, Subject, check_request, run_audit
from quantaudit.numerics import get_scheme
from quantaudit.numerics.fused import fused_status

_LADDER = ("int8-channel", "int4-g32-div7.5", "int3-g32", "int2-g32")
_LADDER_GROUP = 32

__all__ = ["Order", "Settings", "audit_opened", "carry_out", "open_checkpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A checked request: what `quantaudit run` was asked for."""

    hi: Checkpoint
    hi_source: str
    lo: Checkpoint | None
    lo_source: str | None
    recipe: Recipe | None
    contract: Contract
    probes: ProbeSet
    device: str
    threads: int
    settings: Settings
    command: str


def carry_out(order: Order, progress: Progress) -> AuditReport:
    """Runs the audit that was ordered."""
    check_request(order.contract, order.probes, stop_early=order.settings.stop_early)
    torch.set_num_threads(order.threads)
    device = choose_device(order.device)
    progress("open", 0, 2)
    hi = open_realization(order.hi, device)
    progress("open", 1, 2)
    lo = apply_recipe(hi, order.recipe) if order.recipe is not None else _open_lo(order, hi, device)
    progress("open", 2, 2)
    return audit_opened(order, hi, lo, progress)


def audit_opened(order: Order, hi: Realization, lo: Realization, progress: Progress) -> AuditReport:
    """Runs the audit of two realizations that are open already.

    Args:
        order: What the report says about them, and how the audit is run. With a recipe and a source of lo, lo is
            another model than hi, such as a trained one, under the recipe.
        hi: The reference.
        lo: The deployment, on the same device.
        progress: Told (stage, done, total).
    """
    device = choose_device(order.device)
    names = [name for name, _ in matmuls(hi.model)]
    wanted = _wanted(order, hi, lo, names)
    expert = next(name for name in names if ".experts." in name)
    subject = Subject(
        engines=Engines(
            hi=NativeEngine(hi, device), lo=NativeEngine(lo, device), identity=NativeEngine(pass_through(hi), device)
        ),
        hi=_describe(hi, order.hi_source, order.hi_source),
        lo=_describe_lo(order, lo),
        weights=pair_weights(hi, lo, wanted),
        sample_pair=next(p for p in pair_weights(hi, lo, wanted) if p.name == expert),
        num_experts=hi.model.config.num_experts,
        may_be_equal=order.recipe is None or _may_be_equal(hi, lo),
        same_execution=not lo.activations and lo.execution == hi.execution,
        recipe=order.recipe,
        steps=ladder_steps(hi, device),
    )
    report = run_audit(
        subject,
        order.contract,
        order.probes,
        order.settings,
        environment=describe_environment(order, device),
        run=_start(order),
        progress=progress,
    )
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return report.model_copy(update={"run": report.run.model_copy(update={"peak_memory_mb": peak_mb})})


def ladder_steps(hi: Realization, device: torch.device) -> tuple[Step, ...]:
    """Returns the rungs of the ladder: none where hi is quantized already, or a group does not fit its experts."""
    config = hi.model.config
    widths = (config.routed_expert_hidden_size, config.moe_intermediate_size)
    if hi.stored or any(width % _LADDER_GROUP for width in widths):
        return ()

    def open_rung(scheme: str) -> NativeEngine:
        return NativeEngine(round_experts(hi, get_scheme(scheme)), device)

    return tuple(
        Step(scheme=name, bits=get_scheme(name).element.bits, open=partial(open_rung, name)) for name in _LADDER
    )


def choose_device(name: str) -> torch.device:
    """Returns the device: a GPU for "auto" where there is one.

    Raises:
        InputError: If the device is not here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda'", expected="a CUDA device that torch can use", fix="use --device cpu")
    return torch.device(name)


def pair_weights(hi: Realization, lo: Realization, wanted: dict[str, str]) -> Iterator[WeightPair]:
    """Yields every tensor of both realizations, decoded, one pair at a time."""
    for (name, hi_value), (_, lo_value) in zip(weight_values(hi), weight_values(lo), strict=True):
        held = lo.stored.get(name)
        wanted_here = wanted.get(name)
        held_name = held.scheme.name if held is not None else None
        # The scheme of a file need not be one of the catalogue: its groups may have another size.
        if held is not None and wanted_here not in (None, held_name):
            is_alike = is_same_storage(held.scheme, get_scheme(wanted_here))
            held_name = wanted_here if is_alike else held_name
        yield WeightPair(
            name=name,
            layer=_layer_of(name),
            is_expert=".experts." in name,
            hi=hi_value,
            lo=lo_value,
            wanted=wanted_here,
            held=held_name,
        )
    for (path, hi_value), (_, lo_value) in zip(other_values(hi), other_values(lo), strict=True):
        yield WeightPair(
            name=path, layer=_layer_of(path), is_expert=False, hi=hi_value, lo=lo_value, wanted=None, held=None
        )


def _layer_of(name: str) -> int:
    parts = name.removeprefix("model.").split(".")
    return int(parts[1]) if parts[0] == "layers" else -1


def _open_lo(order: Order, hi: Realization, device: torch.device) -> Realization:
    assert order.lo is not None, "an order has a lo checkpoint or a recipe"
    if order.lo.config != order.hi.config:
        raise InputError(
            f"{order.lo_source} is another architecture than {order.hi_source}",
            expected="the same sizes and constants on both sides",
            fix="compare two checkpoints of one model",
        )
    return open_served(order.lo, device)


def _wanted(order: Order, hi: Realization, lo: Realization, names: list[str]) -> dict[str, str]:
    """Returns the scheme each module should be held in."""
    if order.recipe is not None:
        kept = {name: held.scheme.name for name, held in hi.stored.items()}
        rules = assign_rules(names, order.recipe)
        return kept | {name: rule.weight for name, rule in rules.items() if rule.weight is not None}
    assert order.lo is not None
    declared = order.lo.declared
    if declared is None:
        return {}
    usual = next((held.scheme.name for held in lo.stored.values()), declared.format.value)
    return {
        name: lo.stored[name].scheme.name if name in lo.stored else usual
        for name in names
        if ".experts." in name and declared.covers(ExpertStack(_layer_of(name), Role(name.rpartition(".")[2])))
    }


def _may_be_equal(hi: Realization, lo: Realization) -> bool:
    """Tells whether equal weights are what the recipe should give: it quantizes nothing, or only what is stored so."""
    return all(lo.stored[name] is hi.stored.get(name) for name in lo.stored)


def _describe_lo(order: Order, lo: Realization) -> RealizationInfo:
    if order.recipe is not None:
        return _describe(lo, order.recipe.name, f"{order.lo_source or 'hi'} under recipe {order.recipe.name}")
    source = order.lo_source or "lo"
    return _describe(lo, source, source)


def _describe(realization: Realization, label: str, source: str) -> RealizationInfo:
    config = realization.model.config
    experts = [name for name, _ in matmuls(realization.model) if ".experts." in name]
    per_stack = config.num_experts * config.moe_intermediate_size * config.routed_expert_hidden_size
    bits = sum(
        realization.stored[name].payload_bits() if name in realization.stored else 16 * per_stack for name in experts
    )
    schemes = {held.scheme.name: held.scheme.arithmetic_digest for held in realization.stored.values()}
    schemes |= {name: get_scheme(name).arithmetic_digest for name in realization.activations.values()}
    return RealizationInfo(
        label=label,
        source=source,
        weights_digest=digest_by_layer(parameter_readers(realization), config),
        stored_bits_per_expert_weight=bits / (per_stack * len(experts)),
        num_quantized_tensors=sum(name in realization.stored for name in experts) * config.num_experts,
        num_expert_tensors=len(experts) * config.num_experts,
        schemes=dict(sorted(schemes.items())),
        notes=realization.notes,
    )


def describe_environment(order: Order, device: torch.device) -> Environment:
    """Returns what determines the bits."""
    on_gpu = device.type == "cuda"
    return Environment(
        quantaudit=quantaudit.__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        device=torch.cuda.get_device_name(device) if on_gpu else "cpu",
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        threads=order.threads,
        batch_size=order.settings.batch_size,
        compute_dtype=(order.recipe.execution.dtype if order.recipe is not None else "float32"),
        fused_kernels=fused_status(device.type),
    )


def _start(order: Order) -> RunBlock:
    return RunBlock(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        peak_memory_mb=0.0,
        host_load=getloadavg()[0],
        command=order.command,
    )
