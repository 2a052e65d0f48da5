"""Every fault, planted by hand in a random checkpoint, is named, and no other fault claims it."""

from __future__ import annotations

import pytest

from quantaudit.identity.mismatches.protocol import Layer
from quantaudit.identity.mismatches.registry import get_mismatch, is_latent, mismatch_names, search_mismatches
from quantaudit.identity.mismatches.scoring import num_differing
from quantaudit.numerics import get_scheme
from tests.identity.mismatches.planted import PLANTS, trained, untouched

SCHEMES = (
    "mxfp4-even",
    "int4-g32-div7.5",
    pytest.param("mxfp8-e4m3-rceil", marks=pytest.mark.slow),
    pytest.param("nvfp4", marks=pytest.mark.slow),
)
# Power-of-two scales give decoded values back unchanged: quantizing again cannot be seen in them.
LATENT = {("mxfp4-even", "again"), ("mxfp8-e4m3-rceil", "again")}
# Faults of 4-bit codes, of power-of-two scales and of integer codes, where a scheme has none of these.
CANNOT_HAPPEN = {
    "mxfp4-even": {"zero"},
    "mxfp8-e4m3-rceil": {"nibbles", "ggml blocks", "even first", "zero"},
    "int4-g32-div7.5": {"bias written twice", "bias read twice", "ratio"},
    "nvfp4": {"bias written twice", "bias read twice", "ratio", "zero"},
}


def sides(scheme: str, plant: str) -> tuple[Layer, Layer | None]:
    name, change = PLANTS[plant]
    train = untouched(get_scheme(scheme)) if name == "included-layer" else trained(get_scheme(scheme))
    return train, change(train)


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_planted_fault_is_named_and_nothing_else_is_convincing(scheme: str, plant: str) -> None:
    train, serve = sides(scheme, plant)
    if serve is None:
        assert plant in CANNOT_HAPPEN[scheme]
        return
    assert plant not in CANNOT_HAPPEN[scheme]
    right = PLANTS[plant][0]
    found = search_mismatches(train, serve)
    if (scheme, plant) in LATENT:
        assert num_differing(train, serve) == 0 and found == ()
        assert is_latent(get_mismatch(right), train)
        return
    assert found[0].about.name == right
    assert found[0].explains == 1.0 and found[0].num_left == 0
    assert found[0].num_differing == num_differing(train, serve) > 0
    assert [finding.about.name for finding in found[1:] if finding.is_convincing] == []


def test_every_mismatch_is_planted() -> None:
    assert {name for name, _ in PLANTS.values()} == set(mismatch_names())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_equal_sides_name_nothing(scheme: str) -> None:
    assert search_mismatches(trained(get_scheme(scheme)), trained(get_scheme(scheme))) == ()
