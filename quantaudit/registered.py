"""What there is to choose from, and where it comes from: schemes, recipes, contracts, observers, probe sets, backends.

Schemes, observers, probe sets and backends may come from plug-ins, which are imported here to be described; one that
fails is listed with its error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import quantaudit
from quantaudit.core.errors import InputError
from quantaudit.core.probe import ProbeSet, Split
from quantaudit.core.probe_maker import ProbeMaker, adopt_probe_maker, describe_maker
from quantaudit.core.recipe_file import contract_names, load_contract, load_recipe, recipe_names
from quantaudit.core.registry import Registry
from quantaudit.core.serial import Frozen, to_strict
from quantaudit.numerics.catalogue import SCHEMES, get_scheme
from quantaudit.probes.world import DEFAULT_SIZES, FAMILIES, default_probes

T = TypeVar("T")
PROBE_SETS = {"world/audit": Split.AUDIT, "world/select": Split.SELECT}


class ListEntry(Frozen):
    """One registered thing.

    Attributes:
        name: What it is asked for by.
        origin: Package and version.
        description: One line; where it does not load, that and why.
        error: Why it does not load; `None` where it does.
    """

    name: str
    origin: str
    description: str
    error: str | None = None


def list_entries(kind: str) -> tuple[ListEntry, ...]:
    """Returns the registry contents of one kind.

    Raises:
        InputError: If there is no such kind, or two plug-ins claim one name.
    """
    match _singular(kind):
        case "scheme":
            return _list(SCHEMES, lambda scheme: scheme.source)
        case "recipe":
            return _own((name, load_recipe(name).description) for name in recipe_names())
        case "contract":
            return _own((name, load_contract(name).description) for name in contract_names())
        case "observer":
            return _list_observers()
        case "probe":
            return _list(PROBES, describe_maker)
        case "backend":
            return _list_backends()
    kinds = "schemes, recipes, contracts, observers, probes or backends"
    raise InputError(f"the kind {kind!r}", expected=kinds, fix="correct the word")


def describe(kind: str, name: str) -> str:
    """Returns the JSON of one scheme, recipe or contract, its digests first; or what a backend offers.

    Raises:
        InputError: If there is no such kind or name.
    """
    match _singular(kind):
        case "scheme":
            scheme = get_scheme(name)
            digests = {"arithmetic_digest": scheme.arithmetic_digest, "encoding_digest": scheme.encoding_digest}
            return _with_digests(scheme, digests)
        case "recipe":
            recipe = load_recipe(name)
            return _with_digests(recipe, {"digest": recipe.digest()})
        case "contract":
            contract = load_contract(name)
            return _with_digests(contract, {"digest": contract.digest()})
        case "backend":
            return _describe_backend(name)
    raise InputError(f"the kind {kind!r}", expected="scheme, recipe, contract or backend", fix="correct the word")


def _singular(kind: str) -> str:
    """Returns the kind in the singular: `list recipe` and `show recipes` say clearly enough what is meant."""
    return kind.removesuffix("s")


def _list(registry: Registry[T], describe_one: Callable[[T], str]) -> tuple[ListEntry, ...]:
    return tuple(
        ListEntry(
            name=entry.name,
            origin=f"{entry.package} {entry.version}",
            description=f"does not load: {entry.error}" if value is None else describe_one(value),
            error=entry.error,
        )
        for entry, value in registry.load_all()
    )


def _own(described: Iterable[tuple[str, str]]) -> tuple[ListEntry, ...]:
    origin = f"quantaudit {quantaudit.__version__}"
    return tuple(ListEntry(name=name, origin=origin, description=text) for name, text in described)


def _list_observers() -> tuple[ListEntry, ...]:
    """Lists observers per probe, then those per layer, which are built in."""
    # They read traces, which are tensors: only who asks for them waits for torch.
    from quantaudit.evaluation.layers import LAYER_OBSERVERS
    from quantaudit.observers.registry import OBSERVERS

    per_probe = _list(
        OBSERVERS, lambda o: f"{o.unit} per probe, {'larger' if o.larger_is_better else 'smaller'} is better"
    )
    per_layer = _own((name, f"{o.title}, {o.unit}, one number a layer") for name, o in LAYER_OBSERVERS.items())
    built_in = {entry.name for entry in per_layer} | {e.name for e in per_probe if "/" not in e.name}
    return tuple(sorted((*per_probe, *per_layer), key=lambda entry: entry.name not in built_in))


def _list_backends() -> tuple[ListEntry, ...]:
    """Lists the quantizers of all backends by their full names; a backend without its library has one line."""
    # Offers speak of dtypes, which are torch's: only who asks for them waits for it. No other library is imported.
    from quantaudit.backends.listing import list_quantizers

    return tuple(
        ListEntry(name=line.name, origin=line.origin, description=line.description, error=line.error)
        for line in list_quantizers()
    )


def _describe_backend(name: str) -> str:
    from quantaudit.backends.listing import describe_backend

    return json.dumps(to_strict(describe_backend(name)), indent=1) + "\n"


def _with_digests(value: Frozen, digests: dict[str, str]) -> str:
    return json.dumps(to_strict({**digests, **value.model_dump(mode="json")}), indent=1) + "\n"


def _own_probe_sets() -> dict[str, ProbeMaker]:
    return {name: _own_maker(split) for name, split in PROBE_SETS.items()}


def _own_maker(split: Split) -> ProbeMaker:
    make = partial(default_probes, split=split)
    make.__doc__ = (
        f"the built-in closed world, {split.value} split: {sum(DEFAULT_SIZES.values()):,} probes of "
        f"{len(FAMILIES)} families"
    )
    return make


PROBES: Registry[ProbeMaker] = Registry(
    kind="probe set", group="quantaudit.probes", builtins=_own_probe_sets, adopt=adopt_probe_maker
)


def open_probes(name: str) -> ProbeSet:
    """Returns a probe set by name: a built-in one, or that of a plug-in, `package/name`.

    Raises:
        InputError: If there is none, or its plug-in fails to load or makes no sound set.
    """
    return default_probes(split=PROBE_SETS[name]) if name in PROBE_SETS else PROBES.load(name)()
