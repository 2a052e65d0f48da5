"""What a plug-in gives for a probe set: a function that makes it, and what is checked of the set it makes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeAlias

from quantaudit.core.errors import InputError
from quantaudit.core.probe import ProbeSet, Split, probe_id

ProbeMaker: TypeAlias = Callable[[], ProbeSet]


def adopt_probe_maker(name: str, value: object) -> ProbeMaker:
    """Returns a function that makes a plug-in's probe set under its registered name, and checks it.

    Raises:
        TypeError: If the plug-in did not name a function.
    """
    if not callable(value):
        raise TypeError(f"a {type(value).__name__}, not a function that returns a quantaudit.core.probe.ProbeSet")
    function: Callable[[], object] = value

    def make() -> ProbeSet:
        return _checked(name, function())

    make.__doc__ = inspect.getdoc(function)
    return make


def describe_maker(make: ProbeMaker) -> str:
    """Returns the first line of what a maker says of itself; no probe is made."""
    return (make.__doc__ or "").strip().partition("\n")[0]


def _checked(name: str, made: object) -> ProbeSet:
    def refuse(given: str, expected: str) -> InputError:
        return InputError(f"the probe set {name!r}, {given}", expected=expected, fix="repair the package that has it")

    if not isinstance(made, ProbeSet):
        raise refuse(f"made as a {type(made).__name__}", "a quantaudit.core.probe.ProbeSet")
    for probe in made.probes:
        if probe.split is Split.TRAIN:
            raise refuse(f"whose probe {probe.id} is of the training split", "probes that nothing was trained on")
        if probe.id != probe_id(probe.family, probe.prompt, probe.response):
            raise refuse(f"whose probe {probe.id!r} is not called by its digest", "the id that probe_id returns")
    ids = {probe.id for probe in made.probes}
    if len(ids) < len(made.probes):
        raise refuse("in which a probe is there twice", "each probe once")
    return made.model_copy(update={"name": name})
