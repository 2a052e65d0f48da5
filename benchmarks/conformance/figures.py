"""The published figures: which share of scales, codes or values differs between two quantizers of the versions named.

They were measured on other weights of the same kind (Gaussian, lognormal row scales, about a million values), so they
are estimates as much as what is found here is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from benchmarks.conformance.table import Part

VERSIONS: Mapping[str, str] = {
    "torch": "2.13.0",
    "torchao": "0.18.0",
    "bitsandbytes": "0.50.2",
    "transformers": "5.24.0",
    "compressed-tensors": "0.20.1",
    "gguf": "0.19.0",
    "modelopt": "0.47.0",
}
FP32, BF16 = "float32", "bfloat16"
_ONE_OF_MANY = 1e-6  # unit of a published count of none among a million values


class Figure(NamedTuple):
    """One figure.

    Attributes:
        table: Which of the published tables.
        a: First side: "backend:quantizer", or a scheme of the catalogue.
        b: Second side.
        dtype: Of the weights.
        part: What is counted.
        share: Published share, from 0 to 1.
        unit: Of its last digit: it may be half of that away from what was measured. 0 where the two are published as
            one function.
    """

    table: str
    a: str
    b: str
    dtype: str
    part: Part
    share: float
    unit: float


_SCALE_RULES = {  # of two modes of torchao: scales and values in fp32, then in bf16
    ("floor", "even"): ((0.1875, 0.0519), (0.1941, 0.0528)),
    ("floor", "rceil"): ((0.4115, 0.1113), (0.4132, 0.1098)),
    ("floor", "ceil"): ((1.0, 0.3036), (0.9917, 0.2969)),
    ("even", "rceil"): ((0.224, 0.0594), (0.2191, 0.0570)),
    ("even", "ceil"): ((0.8125, 0.2517), (0.7976, 0.2441)),
    ("rceil", "ceil"): ((0.5885, 0.1923), (0.5786, 0.1871)),
}
_TIES = {  # one scale rule, bf16: percent of the values
    ("conventions:triton-old-mxfp4-up", "torchao:mxfp4-rceil"): 0.634,
    ("conventions:quark-mxfp4-even", "torchao:mxfp4-even"): 0.668,
    ("gguf:mxfp4", "torchao:mxfp4-floor"): 0.490,
    ("modelopt:mxfp4", "torchao:mxfp4-rceil"): 0.487,
    ("conventions:microxcaling-mxfp4-nearest", "torchao:mxfp4-floor"): 0.692,
}
_ONE_CLASS = (
    ("conventions:ocp-mxfp4", "torchao:mxfp4-floor"),
    ("conventions:triton-mxfp4-down", "torchao:mxfp4-floor"),
    ("compressed-tensors:mxfp4", "torchao:mxfp4-even"),
)
_NONE_SEEN = (  # one class too, but for absolute maxima some ulps from a power of two, or from 6 times one
    ("conventions:microxcaling-mxfp4-even", "torchao:mxfp4-floor"),
    ("conventions:autoround-mxfp4", "torchao:mxfp4-floor"),
    ("conventions:triton-mxfp4-up", "torchao:mxfp4-rceil"),
)
_INT4 = {  # percent that differs: g32 fp32, g32 bf16, g128 fp32, g128 bf16
    ("torchao:int4-g{}", "compressed-tensors:int4-g{}", Part.VALUES): ("0.278", "0.600", "0.074", "0.328"),
    ("torchao:int4-g{}", "conventions:slime-int4-g{}-train", Part.VALUES): ("87.6", "87.6", "85.1", "85.1"),
    ("torchao:int4-g{}", "conventions:slime-int4-g{}-train", Part.CODES): ("16.9", "16.6", "14.3", "14.0"),
    ("conventions:slime-int4-g{}-train", "conventions:slime-int4-g{}-pack", Part.VALUES): (
        "44.7",
        "7.24",
        "44.1",
        "6.03",
    ),
    ("conventions:slime-int4-g{}-train", "conventions:slime-int4-g{}-pack", Part.CODES): ("", "0.169", "", "0.148"),
    ("int4-g{}-div7-narrow", "int4-g{}-div7", Part.VALUES): ("0", "0", "0", "0"),
    ("torchao:int4-g{}", "torchao:int4-g{}-no-clipping", Part.VALUES): ("87.9", "87.2", "85.5", "84.5"),
    ("torchao:int4-g{}", "torchao:int4-g{}-no-clipping", Part.CODES): ("15.0", "", "", ""),
    ("gguf:q4_0", "torchao:int4-g{}", Part.CODES): ("52.0", "52.4", "", ""),
}
_FP8 = {  # percent that differs: tensor fp32, tensor bf16, blocks of 128 x 128 fp32, bf16
    ("torchao:fp8-{}", "compressed-tensors:fp8-{}", Part.CODES): ("0", "3.30", "0", "3.11"),
    ("torchao:fp8-{}", "fp8-{}", Part.VALUES): ("0", "39.2", "0", "27.9"),
    ("torchao:fp8-{}", "fp8-{}", Part.CODES): ("0", "3.0", "0", "1.84"),
    ("compressed-tensors:fp8-{}", "modelopt:fp8-{}", Part.VALUES): ("0", "0", "0", "0"),
    ("transformers:fp8-{}", "fp8-{}", Part.VALUES): ("", "", "37.0", "0.096"),
    ("conventions:deepseek-v4-fp8-{}", "fp8-{}", Part.VALUES): ("", "", "49.4", "0.55"),
    ("fp8-{}-ue8m0", "fp8-{}", Part.CODES): ("99.98", "99.98", "90.2", "90.2"),
    ("transformers:fp8-{}-ue8m0", "conventions:deepseek-v4-fp8-{}-ue8m0", Part.VALUES): ("", "", "0", "0"),
}
_NVFP4 = {  # percent that differs: fp32, bf16
    ("compressed-tensors:nvfp4", "torchao:nvfp4", Part.SCALES): ("0", "0.70"),
    ("compressed-tensors:nvfp4", "torchao:nvfp4", Part.CODES): ("0", "0.48"),
    ("compressed-tensors:nvfp4", "torchao:nvfp4", Part.VALUES): ("", "32.6"),
    ("torchao:nvfp4-single-level", "torchao:nvfp4", Part.CODES): ("77.9", ""),
    ("modelopt:nvfp4", "torchao:nvfp4", Part.SCALES): ("0", ""),
    ("modelopt:nvfp4", "torchao:nvfp4", Part.CODES): ("0", ""),
    ("modelopt:nvfp4", "torchao:nvfp4", Part.VALUES): ("0", "0"),
}
_NF4 = {  # likewise
    ("bitsandbytes:nf4", "nf4-b64", Part.CODES): ("0", "0"),
    ("bitsandbytes:nf4", "nf4-b64", Part.VALUES): ("0", "0"),
    ("bitsandbytes:nf4-double", "bitsandbytes:nf4", Part.CODES): ("0", ""),
    ("bitsandbytes:nf4-double", "bitsandbytes:nf4", Part.VALUES): ("90.9", ""),
}


def published_figures() -> Iterator[Figure]:
    """Yields the figures, table by table; those of a library's GPU kernels are not among them."""
    for modes, by_dtype in _SCALE_RULES.items():
        a, b = (f"torchao:mxfp4-{mode}" for mode in modes)
        for dtype, (scales, values) in zip((FP32, BF16), by_dtype, strict=True):
            yield Figure("MXFP4 scale rules", a, b, dtype, Part.SCALES, scales, 1e-4)
            yield Figure("MXFP4 scale rules", a, b, dtype, Part.VALUES, values, 1e-4)
    for (a, b), percent in _TIES.items():
        yield Figure("MXFP4 ties", a, b, FP32, Part.VALUES, 0.0, _ONE_OF_MANY)
        yield Figure("MXFP4 ties", a, b, BF16, Part.VALUES, percent / 100, 1e-5)
    yield Figure("MXFP4 ties", "gguf:mxfp4", "torchao:mxfp4-floor", FP32, Part.CODES, 0.042, 1e-3)
    # transformers casts to bf16 first, which fp32 weights show.
    cast = ("conventions:transformers-mxfp4", "torchao:mxfp4-rceil", FP32)
    yield Figure("MXFP4 of a cast", *cast, Part.SCALES, 0.00384, 1e-5)
    yield Figure("MXFP4 of a cast", *cast, Part.VALUES, 0.00685, 1e-5)
    for unit, pairs in ((0.0, _ONE_CLASS), (_ONE_OF_MANY, _NONE_SEEN)):
        for a, b in pairs:
            for dtype in (FP32, BF16):
                yield Figure("MXFP4 within a class", a, b, dtype, Part.VALUES, 0.0, unit)
    yield from _expand("INT4", _INT4, (("32", FP32), ("32", BF16), ("128", FP32), ("128", BF16)))
    yield from _expand("FP8", _FP8, (("tensor", FP32), ("tensor", BF16), ("block128", FP32), ("block128", BF16)))
    yield from _expand("NVFP4", _NVFP4, (("", FP32), ("", BF16)))
    yield from _expand("NF4", _NF4, (("", FP32), ("", BF16)))


def _expand(
    table: str, figures: Mapping[tuple[str, str, Part], tuple[str, ...]], columns: tuple[tuple[str, str], ...]
) -> Iterator[Figure]:
    """Yields the figures of a table whose columns are a size or grain and a dtype; empty cells are not published."""
    for (a, b, part), cells in figures.items():
        for percent, (grain, dtype) in zip(cells, columns, strict=True):
            if percent:
                digits = len(percent.partition(".")[2])
                unit = _ONE_OF_MANY if percent == "0" else 10.0 ** -(digits + 2)
                yield Figure(table, a.format(grain), b.format(grain), dtype, part, float(percent) / 100, unit)
