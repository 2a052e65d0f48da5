"""Mismatches of the exporter: another scheme or set of layers, other masters, a global scale that is never renewed."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.scheme import LinearScale, Scheme, TwoLevel
from quantaudit.core.step_log import FindingKind
from quantaudit.engines.stored import StoredTensor, store
from quantaudit.numerics import fake_quantize, get_scheme, scheme_names
from quantaudit.training.checking.global_scale import quantize_under
from quantaudit.training.checking.injections.points import InjectionAbout, Moment, Options, Plan, Points
from quantaudit.training.checking.loop_mismatches import ANOTHER_RULE, FP32_MASTERS, FROZEN_GLOBAL_SCALE
from quantaudit.training.rl.faults import Packed

_TENSOR = {"tensor": "pattern over module names (default: all)"}


def _plant_rule(options: Options) -> Points:
    given = options.text("scheme", "")
    if given:
        get_scheme(given)

    def layer_set(moment: Moment, schemes: Mapping[str, Scheme | None]) -> Mapping[str, Scheme | None]:
        if not moment.is_active:
            return schemes
        chosen = options.select((name for name, s in schemes.items() if s is not None), one=False)
        return {name: _other(s) if name in chosen and s is not None else s for name, s in schemes.items()}

    def _other(scheme: Scheme) -> Scheme:
        if given:
            return get_scheme(given)
        names = [other.name for other in relatives(scheme)]
        if not names:
            raise options.wrong("scheme", f"a scheme of the catalogue: {scheme.name} has no relative to draw from")
        return get_scheme(options.kept.choose("scheme", lambda: [options.draw(names)])[0])

    return Points(layer_set=layer_set)


def relatives(scheme: Scheme) -> list[Scheme]:
    """Returns the schemes of the catalogue with the same elements and groups, and another arithmetic."""
    known = map(get_scheme, scheme_names())
    return [
        other
        for other in known
        if (other.element, other.granularity) == (scheme.element, scheme.granularity)
        and other.arithmetic_digest != scheme.arithmetic_digest
    ]


def _plant_pattern(options: Options) -> Points:
    given = options.text("match", "")

    def layer_set(moment: Moment, schemes: Mapping[str, Scheme | None]) -> Mapping[str, Scheme | None]:
        if not moment.is_active:
            return schemes
        # What a list meant for one layer often does: `layers.1.*` matches the tenth layer too if the dot is forgotten.
        quantized = sorted(name for name, scheme in schemes.items() if scheme)
        (pattern,) = options.kept.choose(
            "pattern", lambda: [given or f"{options.draw(quantized).split('.experts.')[0]}*"]
        )
        if not any(fnmatch.fnmatchcase(name, pattern) for name in schemes):
            raise options.wrong("match", "a pattern that matches an expert stack")
        return {name: None if fnmatch.fnmatchcase(name, pattern) else s for name, s in schemes.items()}

    return Points(layer_set=layer_set)


def _plant_fp32(options: Options) -> Points:
    def masters(moment: Moment, exported: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if not moment.is_active:
            return exported
        chosen = options.select(exported, one=False)
        if all(held[name].dtype == exported[name].dtype for name in chosen):
            raise InputError(
                f"--inject {options.request.in_words()}",
                expected="masters that are wider than what is exported",
                fix="train with fp32 masters and bf16 exports",
            )
        return {name: held[name].detach() if name in chosen else value for name, value in exported.items()}

    return Points(masters=masters)


def _plant_round_trip(options: Options) -> Points:
    via = get_scheme(options.text("via", "fp8-block128"))

    def masters(moment: Moment, exported: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if not moment.is_active:
            return exported
        chosen = options.select(exported, one=False)
        return {n: fake_quantize(v, via) if n in chosen else v for n, v in exported.items()}

    return Points(masters=masters)


def _plant_global_scale(options: Options) -> Points:
    def export(moment: Moment, packed: Packed, exported: Mapping[str, Tensor]) -> Packed:
        two_level = {name: w for name, w in packed.items() if isinstance(w, StoredTensor) and _is_two_level(w.scheme)}
        first = options.kept.tensors
        for name, weight in two_level.items():
            assert weight.second_scales is not None
            first.setdefault(name, weight.second_scales)
        if not moment.is_active:
            return packed
        if not two_level:
            raise InputError(
                f"--inject {options.request.in_words()}",
                expected="a recipe with a scale of the whole matrix, such as nvfp4",
                fix="choose another recipe for this mismatch",
            )
        chosen = options.select(two_level, one=False)
        frozen = {n: store(quantize_under(exported[n], two_level[n].scheme, first[n])) for n in chosen}
        return {**packed, **frozen}

    return Points(export=export)


def _is_two_level(scheme: Scheme) -> bool:
    return isinstance(scheme.scale, LinearScale) and isinstance(scheme.scale.second_level, TwoLevel)


PLANS = (
    Plan(
        about=InjectionAbout(
            name="another-rule",
            kind=FindingKind.STATE,
            sentence=ANOTHER_RULE.sentence,
            found_as=("another-rule",),
            options={**_TENSOR, "scheme": "the served scheme (default: a relative of the trainer's)"},
        ),
        plant=_plant_rule,
    ),
    Plan(
        about=InjectionAbout(
            name="layer-set-pattern",
            kind=FindingKind.STATE,
            sentence="A name pattern leaves layers unquantized in the served copy.",
            found_as=("skipped-layer",),
            options={"match": "pattern over module names (default: a layer and whatever begins like it)"},
        ),
        plant=_plant_pattern,
    ),
    Plan(
        about=InjectionAbout(
            name="fp32-masters",
            kind=FindingKind.STATE,
            sentence=FP32_MASTERS.sentence,
            found_as=("fp32-masters",),
            options=_TENSOR,
        ),
        plant=_plant_fp32,
    ),
    Plan(
        about=InjectionAbout(
            name="checkpoint-round-trip",
            kind=FindingKind.STATE,
            sentence="The served copy is quantized from weights that were read back from a quantized checkpoint.",
            found_as=("quantized-twice",),
            options={**_TENSOR, "via": "scheme of that checkpoint (default: fp8-block128)"},
        ),
        plant=_plant_round_trip,
    ),
    Plan(
        about=InjectionAbout(
            name="frozen-global-scale",
            kind=FindingKind.STATE,
            sentence=FROZEN_GLOBAL_SCALE.sentence,
            found_as=("frozen-global-scale",),
            options=_TENSOR,
        ),
        plant=_plant_global_scale,
    ),
)
