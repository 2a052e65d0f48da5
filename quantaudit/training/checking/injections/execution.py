"""Mismatches of the computation: the weights are right, and the engine computes otherwise than it declares."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from quantaudit.core.recipe import ComputeDtype
from quantaudit.core.step_log import FindingKind
from quantaudit.numerics import get_scheme
from quantaudit.training.checking.injections.points import InjectionAbout, Moment, Options, Plan, Points
from quantaudit.training.rl.execution import EngineExecution
from quantaudit.training.rl.faults import Flush

_NONE = "none"


def _plant_activation(options: Options) -> Points:
    given = options.text("scheme", _NONE)
    if given != _NONE:
        get_scheme(given)

    def execution(moment: Moment, declared: EngineExecution) -> EngineExecution:
        if not moment.is_active:
            return declared
        activations = {} if given == _NONE else dict.fromkeys(declared.activations, given)
        return declared.model_copy(update={"activations": activations})

    return Points(execution=execution)


def _plant_precision(options: Options, *, field: str) -> Points:
    dtypes = [dtype.value for dtype in ComputeDtype]
    dtype = ComputeDtype(options.choice("dtype", dtypes)) if "dtype" in options.request.options else None

    def execution(moment: Moment, declared: EngineExecution) -> EngineExecution:
        other = dtype or next(d for d in (ComputeDtype.BFLOAT16, ComputeDtype.FLOAT32) if d != getattr(declared, field))
        return declared.model_copy(update={field: other}) if moment.is_active else declared

    return Points(execution=execution)


def _plant_batch(options: Options) -> Points:
    size = options.count("size", 1)

    def execution(moment: Moment, declared: EngineExecution) -> EngineExecution:
        return declared.model_copy(update={"max_batch": size}) if moment.is_active else declared

    return Points(execution=execution)


def _plant_cache(options: Options) -> Points:
    parts = tuple(Flush.model_fields)
    wanted = options.choice("part", ("all", *parts)) if "part" in options.request.options else "all"
    kept = parts if wanted == "all" else (wanted,)

    def flush(moment: Moment, declared: Flush) -> Flush:
        return declared.model_copy(update=dict.fromkeys(kept, False)) if moment.is_active else declared

    return Points(flush=flush)


def _precision(name: str, field: str, sentence: str) -> Plan:
    plant: Callable[[Options], Points] = partial(_plant_precision, field=field)
    return Plan(
        about=InjectionAbout(
            name=name,
            kind=FindingKind.EXECUTION,
            sentence=sentence,
            found_as=(name,),
            options={"dtype": "the dtype (default: one that is not declared)"},
        ),
        plant=plant,
    )


PLANS = (
    Plan(
        about=InjectionAbout(
            name="activation-format",
            kind=FindingKind.EXECUTION,
            sentence="The inputs of the expert GEMMs are quantized in another format, or not at all.",
            found_as=("activation-format",),
            options={"scheme": "the engine's scheme, or none (default: none, so W4A8 is trained and W4A16 served)"},
        ),
        plant=_plant_activation,
    ),
    _precision("router-precision", "router", "The router is computed in another precision."),
    _precision("state-precision", "state", "KDA states are kept in another precision."),
    _precision("latent-precision", "latent", "The latents of MLA, its KV cache, are kept in another precision."),
    _precision("compute-dtype", "dtype", "The engine computes in another dtype."),
    Plan(
        about=InjectionAbout(
            name="batch-size",
            kind=FindingKind.EXECUTION,
            sentence="Another number of sequences goes through the model together.",
            found_as=("batch-size",),
            options={"size": "sequences together (default: 1)"},
        ),
        plant=_plant_batch,
    ),
    Plan(
        about=InjectionAbout(
            name="cache-not-flushed",
            kind=FindingKind.EXECUTION,
            sentence="Memories that earlier weights left are used after a sync.",
            found_as=("cache-not-flushed",),
            options={"part": "kda, latent, logits or all (default: all)"},
        ),
        plant=_plant_cache,
    ),
)
