"""One world and its held-out probe sets, built once for all tests of the package."""

from __future__ import annotations

from random import Random

import pytest

from quantaudit.core.probe import ProbeSet, Split
from quantaudit.probes.world import (
    DEFAULT_SIZES,
    FAMILIES,
    TRAINED_ONLY,
    Item,
    World,
    build_probes,
    build_world,
    sample_train,
)


@pytest.fixture(scope="session")
def world() -> World:
    """The world of seed 0, which the embedded model knows."""
    return build_world()


@pytest.fixture(scope="session")
def audit(world: World) -> ProbeSet:
    """The built-in audit set."""
    return build_probes(world, Split.AUDIT, DEFAULT_SIZES)


@pytest.fixture(scope="session")
def select(world: World) -> ProbeSet:
    """The selection set of the same size."""
    return build_probes(world, Split.SELECT, DEFAULT_SIZES)


@pytest.fixture(scope="session")
def stream(world: World) -> tuple[Item, ...]:
    """A training stream of 55,000 items, 5,000 of each family."""
    rng = Random("stream")
    return tuple(sample_train(world, family, rng) for family in FAMILIES + TRAINED_ONLY for _ in range(5_000))
