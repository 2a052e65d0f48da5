"""torchao's FP8 quantizers, stored and fake, are the schemes that they name but for what their offers say."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torchao.quantization import Float8WeightOnlyConfig, quantize_
from torchao.quantization.quantize_.workflows.float8.float8_tensor import Float8Tensor

from quantaudit.backends import load_backend
from quantaudit.backends import torchao_departures as d
from quantaudit.backends.protocol import Offer
from quantaudit.backends.torchao_offers import OFFERS, QAT_OFFERS
from quantaudit.core.errors import InputError
from quantaudit.numerics import dequantize, get_scheme, quantize
from tests.backends.comparison import DTYPE_NAMES, DTYPES, Parting, compare, grouped, structured
from tests.numerics.bits import assert_same_bits

TORCHAO = load_backend("torchao")
OFFERED = [
    (backend, offer)
    for backend, offers in (("torchao", OFFERS), ("torchao-qat", QAT_OFFERS))
    for offer in offers.values()
    if d.DIVIDES_BY_ZERO in offer.departs
]
each_offer = pytest.mark.parametrize(("backend", "offer"), OFFERED, ids=[f"{b}:{o.name}" for b, o in OFFERED])
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES)


def matrices(dtype: torch.dtype) -> list[Tensor]:
    """Returns matrices of 128 rows that hold each structured row: whole for rows, alone for tensors and blocks."""
    rows = structured(dtype)
    return [row.repeat(128, 1) * torch.linspace(0.5, 1, 128, dtype=dtype).unsqueeze(1) for row in rows]


@each_dtype
@each_offer
def test_the_sentences_leave_nothing_unsaid(backend: str, offer: Offer, dtype: torch.dtype) -> None:
    scheme = get_scheme(offer.catalogue)
    for x in matrices(dtype):
        groups = grouped(x, scheme)
        parting = compare(backend, offer.name, x, scheme)
        is_zero = quantize(x, scheme).scales.flatten() == 0
        assert not parting.anywhere[groups.isfinite().all(-1) & ~is_zero].any()
        # Zeros become NaN; other values decode to zero there too, with the sign that the catalogue gives them.
        assert torch.equal(parting.values, is_zero & groups.eq(0).any(-1))
        assert torch.equal(parting.scales, groups.isinf().any(-1) & ~groups.isnan().any(-1))


@each_offer
def test_bf16_rounds_the_scale_alone(backend: str, offer: Offer) -> None:
    x = torch.randn(128, 256).bfloat16()
    scheme = get_scheme(offer.catalogue)
    plain = get_scheme(scheme.name.removesuffix("-native-scale"))
    q, ours = load_backend(backend).quantize(x, offer.name), quantize(x, plain)
    rounded = (grouped(x, scheme).abs().amax(-1) / 448).float()
    assert_same_bits(q.scales.flatten(), rounded)
    assert (q.scales != ours.scales).any()
    parting: Parting = compare(backend, offer.name, x.float(), plain)
    assert not parting.anywhere.any()


@each_dtype
@each_offer
def test_a_scale_of_zero_is_divided_by(backend: str, offer: Offer, dtype: torch.dtype) -> None:
    library = load_backend(backend)
    zeros = torch.zeros(128, 128, dtype=dtype)
    assert library.dequantize(library.quantize(zeros, offer.name)).isnan().all()
    x = zeros.clone()
    x[:, 0], x[:, 1] = 2.0**-133, -(2.0**-133)  # over 448 it vanishes, in fp32 only after two more halvings
    if dtype is torch.float32:
        x[:, :2] *= 2.0**-16
    q = library.quantize(x, offer.name)
    values = library.dequantize(q)
    assert not q.scales.any() and not values[:, :2].any() and values[:, 2:].isnan().all()
    assert (q.codes[:, :2] == torch.tensor([0x7E, 0xFE], dtype=torch.uint8)).all()
    assert not dequantize(quantize(x, get_scheme(offer.catalogue))).isnan().any()


@each_dtype
@each_offer
def test_an_infinity_or_a_nan_leaves_codes_behind(backend: str, offer: Offer, dtype: torch.dtype) -> None:
    library, scheme = load_backend(backend), get_scheme(offer.catalogue)
    for special in (-math.inf, math.nan):
        x = torch.ones(128, 128, dtype=dtype)
        x[:, 0] = special
        q, ours = library.quantize(x, offer.name), quantize(x, scheme)
        assert q.codes.any() and not ours.codes.any()
        assert library.dequantize(q).isnan().all() and dequantize(ours).isnan().all()
        assert ours.scales.isnan().all() and (q.scales.isnan() if math.isnan(special) else q.scales.isposinf()).all()


@each_offer
def test_only_a_scale_per_tensor_is_shared_by_experts(backend: str, offer: Offer) -> None:
    x = torch.randn(2, 128, 256)
    x[1] *= 100
    q, ours = load_backend(backend).quantize(x, offer.name), quantize(x, get_scheme(offer.catalogue))
    assert q.scales.shape == ours.scales.shape
    if d.SHARED_BY_EXPERTS in offer.departs:
        assert q.scales[0] == q.scales[1] == ours.scales[1] != ours.scales[0]
    else:
        assert_same_bits(q.scales, ours.scales)
        assert torch.equal(q.codes, ours.codes)


def test_partial_blocks_are_refused() -> None:
    assert d.WHOLE_BLOCKS in OFFERS["fp8-block128"].departs
    for shape in ((100, 256), (2, 128, 200)):
        with pytest.raises(InputError, match="no partial blocks"):
            TORCHAO.quantize(torch.ones(shape), "fp8-block128")
        quantize(torch.ones(shape), get_scheme("fp8-block128"))


@each_dtype
def test_the_quantizer_of_the_configuration_is_this_one(dtype: torch.dtype) -> None:
    linear = torch.nn.Linear(256, 64, bias=False, dtype=dtype)
    q = TORCHAO.quantize(linear.weight, "fp8-channel")
    quantize_(linear, Float8WeightOnlyConfig())
    stored = linear.weight
    assert isinstance(stored, Float8Tensor)
    assert torch.equal(q.codes, stored.qdata.view(torch.uint8))
    assert_same_bits(q.scales, stored.scale)
    assert_same_bits(TORCHAO.dequantize(q), stored.dequantize())
