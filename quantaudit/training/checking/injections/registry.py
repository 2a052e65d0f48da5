"""All injections by name, and the faults of a run made from what was asked for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from quantaudit.core.errors import InputError
from quantaudit.training.checking.injections import execution, kernel, rules, structural, transport
from quantaudit.training.checking.injections.points import InjectionAbout, Options, Plan, PlantedFaults
from quantaudit.training.checking.injections.request import InjectionRequest, parse_request

# `stale` and others of the exporter first, then what happens on the way, in the engine's memory, and in its arithmetic.
PLANS: tuple[Plan, ...] = (*structural.PLANS, *rules.PLANS, *transport.PLANS, *kernel.PLANS, *execution.PLANS)
_SHARED_OPTIONS = {"for": "number of steps at which it happens (default: all that follow)"}


def list_injections() -> tuple[InjectionAbout, ...]:
    """Returns what can be planted."""
    return tuple(plan.about for plan in PLANS)


def get_plan(name: str) -> Plan:
    """Returns an injection by name.

    Raises:
        InputError: If there is none of that name.
    """
    known = {plan.about.name: plan for plan in PLANS}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    raise InputError(
        f"the injection {name!r}",
        expected=f"one of {', '.join(known)}",
        fix=f"did you mean {', '.join(near)}?" if near else "choose one of them",
    )


def make_faults(requests: Iterable[str | InjectionRequest], *, seed: int = 0) -> PlantedFaults:
    """Returns the faults of a run.

    Args:
        requests: Each `NAME@STEP[:key=value,...]`.
        seed: Draws what is not given.

    Raises:
        InputError: If a name, an option or its value is unknown.
    """
    planted = []
    for request in requests:
        parsed = parse_request(request) if isinstance(request, str) else request
        plan = get_plan(parsed.name)
        known = {**plan.about.options, **_SHARED_OPTIONS}
        strange = sorted(set(parsed.options) - set(known))
        if strange:
            raise InputError(
                f"--inject {parsed.in_words()}: the option {strange[0]!r}",
                expected=f"one of {', '.join(known)}",
                fix="leave it out",
            )
        options = Options(parsed, seed)
        last = parsed.step + options.count("for", 1) - 1 if "for" in parsed.options else None
        planted.append((parsed, plan.plant(options), last, options.kept))
    return PlantedFaults(planted)
