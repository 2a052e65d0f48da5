"""What is planted: every injection, in random recipes, at random steps, with random options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random

from benchmarks.sensitivity.loop import LoopSettings, SmallLoop
from quantaudit.core.errors import InputError
from quantaudit.training.checking.injections.registry import PLANS, make_faults
from quantaudit.training.checking.injections.request import InjectionRequest
from quantaudit.training.rl.sync import QuantizeAt

SEED = 20261130
SCHEMES = ("mxfp4-even", "mxfp4-floor", "mxfp4-rceil", "mxfp4-even-away", "int4-g32-div7", "int4-g32-div7.5", "nvfp4")
ACTIVATIONS = (None, "mxfp8-e4m3-even", "mxfp8-e4m3-rceil")
STEPS_BEFORE, STEPS_AFTER = 3, 1
_ATTEMPTS = 40
_MODULES = tuple(f"layers.{layer}.experts.{role}" for layer in (1, 2) for role in ("w1", "w2", "w3"))
# Schemes in which a mismatch can happen at all, where it cannot in all.
_ONLY_IN: Mapping[str, tuple[str, ...]] = {
    "zero-point": ("int4-g32-div7", "int4-g32-div7.5"),
    "frozen-global-scale": ("nvfp4",),
    "exponent-offset": ("mxfp4-even", "mxfp4-floor", "mxfp4-rceil"),
    "exponent-from-ratio": ("mxfp4-even", "mxfp4-floor", "mxfp4-rceil"),
    "split-blocks": ("mxfp4-even", "mxfp4-floor", "int4-g32-div7"),
    "nibble-order": ("mxfp4-even", "mxfp4-floor", "int4-g32-div7"),
}
_WITH_EXPERTS = frozenset({"nibble-order", "transposed-scales", "stale", "exponent-from-ratio", "shared-scale"})
_AT_TRAINER = frozenset(plan.about.name for plan in PLANS[:17]) | {"frozen-global-scale"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run with one injection."""

    settings: LoopSettings
    request: InjectionRequest


def draw_trials(name: str, count: int) -> Iterator[Trial]:
    """Yields runs of one injection; a draw in which it cannot happen is replaced by the next."""
    random = Random(f"{SEED}/{name}")
    for _ in range(count):
        for _ in range(_ATTEMPTS):
            trial = _draw(name, random)
            if _can_happen(trial):
                yield trial
                break
        else:
            raise InputError(f"the injection {name!r}", expected="a recipe in which it can happen", fix="add one")


def draw_settings(random: Random) -> LoopSettings:
    """Returns a random recipe, size of updates and place of quantization."""
    return LoopSettings(
        weight=random.choice(SCHEMES),
        activation=random.choice(ACTIVATIONS),
        quantize_at=random.choice((QuantizeAt.TRAINER, QuantizeAt.TRAINER, QuantizeAt.ARRIVAL)),
        update=random.choice((1e-3, 1e-2, 3e-2)),
        exports_bf16=random.random() < 0.75,
        seed=random.randrange(1 << 30),
    )


def _draw(name: str, random: Random) -> Trial:
    settings = draw_settings(random)
    if name in _ONLY_IN:
        settings = replace(settings, weight=random.choice(_ONLY_IN[name]))
    if name in _AT_TRAINER:
        settings = replace(settings, quantize_at=QuantizeAt.TRAINER)
    if name == "included-layer":
        settings = replace(settings, spared=random.choice(_MODULES), exports_bf16=True)
    if name in {"fp32-masters", "source-dtype"}:
        settings = replace(settings, exports_bf16=name == "fp32-masters")
    if name == "activation-format":
        settings = replace(settings, activation=random.choice(ACTIVATIONS[1:]))
    step = random.randrange(1, STEPS_BEFORE + 1)
    request = InjectionRequest(name=name, step=step, options=_options(name, random))
    return Trial(settings=settings, request=request)


def _options(name: str, random: Random) -> dict[str, str]:
    if name in _WITH_EXPERTS and random.random() < 0.5:
        return {"experts": str(random.randrange(1, 8))}
    if name == "checkpoint-round-trip":
        return {"via": random.choice(("fp8-block128", "int8-channel", "fp8-channel"))}
    if name == "cache-not-flushed":
        return {"part": random.choice(("all", "kda", "latent", "logits"))}
    if name == "placement-change":
        return {"pairs": str(random.randrange(1, 4))}
    if name == "another-rule" and random.random() < 0.5:
        return {"tensor": random.choice(_MODULES)}
    if name == "batch-size":
        return {"size": random.choice(("1", "2"))}
    return {}


def _can_happen(trial: Trial) -> bool:
    """Says whether the injection can be carried out in this recipe."""
    quick = replace(trial.settings, has_canary=False)
    loop = SmallLoop(quick, make_faults([trial.request], seed=quick.seed))
    try:
        for _ in range(trial.request.step + 1):
            loop.sync_only()
    except InputError:
        return False
    return True
