"""The catalogue holds every scheme that was promised, each one different and each with its source."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from quantaudit.core.errors import InputError
from quantaudit.core.format import E4M3, INT4
from quantaudit.core.scheme import Arithmetic, Division, ExponentScale, LinearScale, PerGroup, Scheme
from quantaudit.numerics import fake_quantize, get_scheme, quantize, scheme_names
from quantaudit.numerics.catalogue import bundled_schemes

SCALE_RULES = ("floor", "even", "rceil", "ceil")
PROMISED = (
    {f"mxfp4-{rule}{tie}" for rule in SCALE_RULES for tie in ("", "-away", "-zero")}
    | {f"{mx}-{rule}" for mx in ("mxfp6-e2m3", "mxfp6-e3m2", "mxfp8-e4m3", "mxfp8-e5m2") for rule in SCALE_RULES}
    | {f"int4-g{g}-div{d}{narrow}" for g in (32, 128) for d in ("7", "7.5", "8") for narrow in ("", "-narrow")}
    | {"nvfp4", "int8-channel", "int3-g32", "int2-g32", "gguf-q4_0"}
    | {f"fp8-{grain}{pow2}" for grain in ("tensor", "channel", "block128") for pow2 in ("", "-ue8m0")}
    | {f"{book}-b64{double}" for book in ("nf4", "fp4") for double in ("", "-double")}
)
LIBRARIES = (
    {f"int4-g{g}-div7.5-{own}" for g in (32, 128) for own in ("native", "recip-native", "recip-native-scale")}
    | {f"int4-g{g}-div7-narrow-native" for g in (32, 128)}
    | {f"int8-{g}-div127.5-recip-native{own}" for g in ("channel", "g32") for own in ("", "-scale", "-scale-eps")}
    | {f"fp8-{grain}-native{scale}" for grain in ("tensor", "channel", "block128") for scale in ("", "-scale")}
    | {"mxfp8-e4m3-even-e2m1", "nvfp4-single-level", "nvfp4-divide", "gguf-q8_0", "dynamic8-b4096"}
)


def test_names_are_exactly_those_promised() -> None:
    assert set(scheme_names()) == PROMISED | LIBRARIES
    assert len(scheme_names()) == len(PROMISED) + len(LIBRARIES)
    assert set(scheme_names()[: len(PROMISED)]) == PROMISED  # of one function under two names, the plain one is first


def test_every_scheme_is_another_function_by_its_digest() -> None:
    digests = {get_scheme(name).arithmetic_digest for name in scheme_names()}
    assert len(digests) == len(scheme_names())


@pytest.mark.parametrize("name", scheme_names())
def test_a_scheme_knows_its_name_and_source_and_survives_json(name: str) -> None:
    scheme = get_scheme(name)
    assert scheme.name == name and scheme.source
    again = Scheme.from_json(scheme.to_json())
    assert (again, again.arithmetic_digest) == (scheme, scheme.arithmetic_digest)


def test_names_mean_what_they_say() -> None:
    for name in scheme_names():
        scheme = get_scheme(name)
        if name.startswith("int4"):
            assert scheme.element == INT4 and isinstance(scheme.granularity, PerGroup)
            assert isinstance(scheme.scale, LinearScale) and scheme.code_range is not None
            assert f"-g{scheme.granularity.size}-div{scheme.scale.divisor:g}" in name
            assert scheme.code_range.low == (-7 if "-narrow" in name else -8)
        if name.startswith("mx") and isinstance(scheme.scale, ExponentScale):
            assert f"-{scheme.scale.rounding}" in name
        if name.startswith("fp8"):
            assert scheme.element == E4M3 and isinstance(scheme.scale, ExponentScale) == name.endswith("-ue8m0")
        if name in LIBRARIES and isinstance(scheme.scale, LinearScale):
            assert (scheme.scale.arithmetic is Arithmetic.INPUT) == ("-native" in name)
            assert (scheme.arithmetic is Arithmetic.INPUT) == name.endswith("-native")
            if name.startswith("int"):
                assert (scheme.division is Division.RECIPROCAL) == ("-recip" in name)
                assert (scheme.scale.scale_floor == 2.0**-23) == name.endswith("-eps")


@pytest.mark.parametrize("name", [name for name in sorted(LIBRARIES) if "-native" in name])
def test_the_dtype_of_the_tensor_matters_to_bf16_alone(name: str) -> None:
    scheme = get_scheme(name)
    in_fp32 = scheme.model_copy(
        update={
            "arithmetic": Arithmetic.FLOAT32,
            "scale": scheme.scale.model_copy(update={"arithmetic": Arithmetic.FLOAT32}),
        }
    )
    x = torch.randn(128, 128)
    assert torch.equal(fake_quantize(x, scheme), fake_quantize(x, in_fp32))
    x = x.bfloat16()
    assert not torch.equal(quantize(x, scheme).scales, quantize(x, in_fp32).scales)


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match="did you mean mxfp4-even"):
        get_scheme("mxfp4-evn")
    with pytest.raises(InputError, match="quantaudit list schemes"):
        get_scheme("zzz")


def test_the_catalogue_loads_without_torch() -> None:
    code = (
        "import sys; from quantaudit.numerics import get_scheme, scheme_names; "
        "[get_scheme(n) for n in scheme_names()]; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_bundled_schemes_are_listed_without_plug_ins() -> None:
    names = [scheme.name for scheme in bundled_schemes()]
    assert names == [name for name in scheme_names() if "/" not in name]
