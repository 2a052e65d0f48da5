"""The bundled schemes by name, each with its source, and those of plug-ins.

Names: `<element>-<granularity>-<what else>`; MX names are `mx<element>-<scale rule>[-<tie rule>]`, ties to even unless
named. Zero, infinite and NaN groups: see `core.scheme`. What single libraries compute follows in `library_schemes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from quantaudit.core.format import (
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    FP16,
    INT2,
    INT3,
    INT4,
    INT8,
    CodebookFormat,
    FloatFormat,
    IntegerFormat,
)
from quantaudit.core.registry import Registry
from quantaudit.core.scheme import (
    CodeRange,
    Division,
    DoubleQuantization,
    EncodeScale,
    ExponentRounding,
    ExponentScale,
    FlatBlocks,
    Granularity,
    Layout,
    LinearScale,
    Overflow,
    PerBlock,
    PerChannel,
    PerGroup,
    PerTensor,
    ScaleRule,
    Scheme,
    Statistic,
    Tie,
    TwoLevel,
)
from quantaudit.numerics.codebooks import BNB_FP4, DYNAMIC8, NF4
from quantaudit.numerics.library_schemes import library_schemes

_OCP = "OCP Microscaling Formats (MX) v1.0"
_MX_RULES = {
    ExponentRounding.FLOOR: f"{_OCP}, section 6.3",
    ExponentRounding.EVEN: "torchao ScaleCalculationMode.EVEN; for MXFP4 also compressed-tensors",
    ExponentRounding.RCEIL: "cuBLAS 1D block scaling; torchao ScaleCalculationMode.RCEIL, by exact comparison",
    ExponentRounding.CEIL: "torchao ScaleCalculationMode.CEIL",
}
_MX_ELEMENTS = {"mxfp4": E2M1, "mxfp6-e2m3": E2M3, "mxfp6-e3m2": E3M2, "mxfp8-e4m3": E4M3, "mxfp8-e5m2": E5M2}
_MX_TIES = {"": Tie.EVEN, "-away": Tie.AWAY, "-zero": Tie.ZERO}
_MX_GROUP = 32
_TIE_SOURCE = {
    Tie.EVEN: "",
    Tie.AWAY: "; ties away as in microxcaling 'nearest' and older Triton kernels",
    Tie.ZERO: "; ties toward zero as in gguf and TensorRT Model Optimizer",
}
_BNB_FLOOR = 1e-38
_E4M3_SMALLEST_NORMAL = 2.0**-6


def get_scheme(name: str) -> Scheme:
    """Returns a scheme by name: a bundled one, or that of a plug-in, `package/name`.

    Raises:
        InputError: If there is none of that name (the message names the nearest ones), or its plug-in fails to load.
    """
    return SCHEMES.load(name)


def scheme_names() -> tuple[str, ...]:
    """Lists the names of the bundled schemes in catalogue order, then those of plug-ins, which are not imported."""
    return SCHEMES.names()


def bundled_schemes() -> tuple[Scheme, ...]:
    """Lists the bundled schemes in catalogue order; plug-ins are not looked for, which takes some 25 ms."""
    return tuple(_catalogue().values())


@lru_cache(maxsize=1)
def _catalogue() -> dict[str, Scheme]:
    schemes = [*_mx(), _nvfp4(), *_integers(), *_fp8(), *_bitsandbytes(), _gguf_q4_0()]
    plain = {scheme.name: scheme for scheme in schemes}
    return plain | {scheme.name: scheme for scheme in library_schemes(plain.__getitem__)}


def _adopt(name: str, value: object) -> Scheme:
    """Returns a plug-in's scheme under its registered name, which no digest covers."""
    if not isinstance(value, Scheme):
        raise TypeError(f"a {type(value).__name__}, not a quantaudit.Scheme")
    return value.model_copy(update={"name": name})


SCHEMES: Registry[Scheme] = Registry(kind="scheme", group="quantaudit.schemes", builtins=_catalogue, adopt=_adopt)


def _mx() -> Iterator[Scheme]:
    for stem, element in _MX_ELEMENTS.items():
        for rounding, source in _MX_RULES.items():
            for suffix, tie in _MX_TIES.items() if element is E2M1 else [("", Tie.EVEN)]:
                yield Scheme(
                    name=f"{stem}-{rounding}{suffix}",
                    element=element,
                    granularity=PerGroup(size=_MX_GROUP),
                    scale=_power_of_two(element, rounding),
                    tie=tie,
                    layout=Layout.LOW_NIBBLE_FIRST if element.bits == 4 else Layout.BYTES,
                    source=source + _TIE_SOURCE[tie],
                )


def _power_of_two(element: FloatFormat, rounding: ExponentRounding) -> ExponentScale:
    kept = element.mantissa_bits if rounding is ExponentRounding.EVEN else None
    return ExponentScale(rounding=rounding, divisor=element.max, kept_mantissa_bits=kept)


def _nvfp4() -> Scheme:
    return Scheme(
        name="nvfp4",
        element=E2M1,
        granularity=PerGroup(size=16),
        scale=LinearScale(
            divisor=E2M1.max,
            scale_floor=_E4M3_SMALLEST_NORMAL,
            format=E4M3,
            second_level=TwoLevel(divisor=E2M1.max * E4M3.max),
        ),
        division=Division.RECIPROCAL,
        layout=Layout.LOW_NIBBLE_FIRST,
        source="NVIDIA NVFP4 two-level scaling, order of operations of torchao nvfp4_quantize",
    )


def _integers() -> Iterator[Scheme]:
    for size in (32, 128):
        for divisor in (7.0, 7.5, 8.0):
            for suffix, low in (("", -8), ("-narrow", -7)):
                name = f"int4-g{size}-div{divisor:g}{suffix}"
                yield _integer(name, INT4, PerGroup(size=size), divisor, CodeRange(low=low, high=7))
    yield _integer("int8-channel", INT8, PerChannel(), 127.0, CodeRange(low=-127, high=127))
    yield _integer("int3-g32", INT3, PerGroup(size=32), 3.0, CodeRange(low=-3, high=3))
    yield _integer("int2-g32", INT2, PerGroup(size=32), 1.0, CodeRange(low=-1, high=1))


def _integer(
    name: str, element: IntegerFormat, granularity: Granularity, divisor: float, code_range: CodeRange
) -> Scheme:
    return Scheme(
        name=name,
        element=element,
        granularity=granularity,
        scale=LinearScale(divisor=divisor),
        code_range=code_range,
        layout=Layout.INT32_WORDS if element is INT4 else Layout.BYTES,
        source=f"symmetric round-to-nearest, scale = absmax / {divisor:g} in fp32, true division",
    )


def _fp8() -> Iterator[Scheme]:
    grains: dict[str, Granularity] = {
        "tensor": PerTensor(),
        "channel": PerChannel(),
        "block128": PerBlock(rows=128, cols=128),
    }
    for grain, granularity in grains.items():
        rules: dict[str, ScaleRule] = {
            "": LinearScale(divisor=E4M3.max),
            "-ue8m0": _power_of_two(E4M3, ExponentRounding.RCEIL),
        }
        for suffix, rule in rules.items():
            yield Scheme(
                name=f"fp8-{grain}{suffix}",
                element=E4M3,
                granularity=granularity,
                scale=rule,
                source="scale = absmax / 448 in fp32, as in DeepSeek-V3 (arXiv 2412.19437, section 3.3)"
                + (", rounded up to a power of two" if suffix else ""),
            )


def _bitsandbytes() -> Iterator[Scheme]:
    for stem, element in (("nf4", NF4), ("fp4", BNB_FP4)):
        yield _flat_codebook(f"{stem}-b64", element, 64, None)
        inner = _flat_codebook("absmax", DYNAMIC8, 256, None)
        yield _flat_codebook(f"{stem}-b64-double", element, 64, DoubleQuantization(scheme=inner))


def _flat_codebook(name: str, element: CodebookFormat, size: int, second: DoubleQuantization | None) -> Scheme:
    return Scheme(
        name=name,
        element=element,
        granularity=FlatBlocks(size=size),
        scale=LinearScale(
            divisor=1.0,
            encode_floor=_BNB_FLOOR,
            encode_with=EncodeScale.STORED if second is None else EncodeScale.COMPUTED,
            second_level=second,
        ),
        division=Division.RECIPROCAL,
        tie=Tie.LOWER,
        layout=Layout.HIGH_NIBBLE_FIRST if element.bits == 4 else Layout.BYTES,
        source="bitsandbytes quantize_4bit (QLoRA, arXiv 2305.14314)"
        + ("" if second is None else ", nested statistics; the mean in a fixed order of additions"),
    )


def _gguf_q4_0() -> Scheme:
    return Scheme(
        name="gguf-q4_0",
        element=INT4,
        granularity=PerGroup(size=32),
        scale=LinearScale(
            statistic=Statistic.SIGNED_ABSMAX,
            divisor=-8.0,
            format=FP16,
            overflow=Overflow.SPECIAL,
            encode_with=EncodeScale.COMPUTED,
        ),
        division=Division.RECIPROCAL,
        tie=Tie.BIASED_UP,
        code_range=CodeRange(low=-8, high=7),
        layout=Layout.GGML_SPLIT,
        source="ggml quantize_row_q4_0_ref",
    )
