"""GPTQ of a stack: less error of the output than round-to-nearest, on the same scales, for every expert that saw rows.

Legend: E experts, O out, I in, N rows of one expert.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.numerics import dequantize, get_scheme, quantize
from quantaudit.training.gptq import SeenInputs, check_library, encode_at, library_version, round_stack, take_expert
from tests.training import gptq_oracle
from tests.training.gptq_library import IS_INSTALLED, choose, needs_library, rounders

SCHEMES = ["int3-g32", "int4-g32-div7.5", "mxfp4-even", "nvfp4"]
DAMPENING = 0.01


@pytest.fixture(autouse=True)
def rounder_in_place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the rounder of a parametrised test in place."""
    if "rounder" in request.fixturenames:
        choose(request.getfixturevalue("rounder"), monkeypatch)


def stack(num_experts: int = 3, num_rows: int = 200) -> tuple[Tensor, Tensor]:
    """Returns weights `[E, 48, 64]`, bf16, and rows `[E, N, 64]` with a few strong directions, as activations have."""
    generator = torch.Generator().manual_seed(7)
    weight_EOI = torch.randn(num_experts, 48, 64, generator=generator).to(torch.bfloat16)
    strength_I = torch.logspace(0, -2, 64)
    mix_II = torch.linalg.qr(torch.randn(64, 64, generator=generator)).Q
    x_ENI = (torch.randn(num_experts, num_rows, 64, generator=generator) * strength_I) @ mix_II
    return weight_EOI, x_ENI


def output_error(values_EOI: Tensor, weight_EOI: Tensor, x_ENI: Tensor) -> Tensor:
    """Returns the squared error of the outputs of every expert, `[E]`."""
    return (x_ENI.double() @ (values_EOI.double() - weight_EOI.double()).mT).square().sum((1, 2))


@rounders
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_output_error_of_every_expert_falls_below_that_of_round_to_nearest(rounder: str, scheme: str) -> None:
    weight_EOI, x_ENI = stack()
    nearest = quantize(weight_EOI, get_scheme(scheme))
    rounded, num_nearest = round_stack(weight_EOI, get_scheme(scheme), gptq_oracle.see(x_ENI), dampening=DAMPENING)
    before, after = (output_error(dequantize(q, torch.float32), weight_EOI, x_ENI) for q in (nearest, rounded))
    assert num_nearest == 0
    assert bool((after < before).all()), (after / before).tolist()
    assert torch.equal(rounded.scales, nearest.scales) and rounded.codes.dtype == nearest.codes.dtype
    assert not torch.equal(rounded.codes, nearest.codes)


@rounders
def test_an_expert_without_rows_keeps_the_codes_of_round_to_nearest(rounder: str) -> None:
    weight_EOI, x_ENI = stack()
    seen = gptq_oracle.see(x_ENI)
    seen.hessian_EII[1].zero_()
    rounded, num_nearest = round_stack(
        weight_EOI,
        get_scheme("int3-g32"),
        SeenInputs(hessian_EII=seen.hessian_EII, rows_E=(200, 0, 200)),
        dampening=DAMPENING,
    )
    is_same_E = (rounded.codes == quantize(weight_EOI, get_scheme("int3-g32")).codes).all(-1).all(-1)
    assert is_same_E.tolist() == [False, True, False]
    assert num_nearest == 1


@rounders
def test_dampening_lets_an_expert_gain_that_saw_fewer_rows_than_columns(rounder: str) -> None:
    weight_EOI, x_ENI = stack(num_rows=5)
    seen = gptq_oracle.see(x_ENI)
    assert all(int(torch.linalg.matrix_rank(h)) == 5 for h in seen.hessian_EII), "singular without dampening"
    rounded, num_nearest = round_stack(weight_EOI, get_scheme("int3-g32"), seen, dampening=DAMPENING)
    before = output_error(dequantize(quantize(weight_EOI, get_scheme("int3-g32"))), weight_EOI, x_ENI)
    assert num_nearest == 0
    assert bool((output_error(dequantize(rounded), weight_EOI, x_ENI) < before).all())


@rounders
def test_a_hessian_that_dampening_does_not_save_means_round_to_nearest(
    rounder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    weight_EOI, x_ENI = stack(num_experts=1)
    hopeless = SeenInputs(hessian_EII=-gptq_oracle.see(x_ENI).hessian_EII, rows_E=(200,))
    rounded, num_nearest = round_stack(weight_EOI, get_scheme("int3-g32"), hopeless, dampening=DAMPENING)
    assert num_nearest == 1
    assert torch.equal(rounded.codes, quantize(weight_EOI, get_scheme("int3-g32")).codes)
    assert capsys.readouterr().out == "", "stdout belongs to the result"


@rounders
def test_uncorrelated_inputs_leave_nothing_to_compensate(rounder: str) -> None:
    weight_EOI, _ = stack(num_experts=1)
    white = SeenInputs(hessian_EII=torch.eye(64).unsqueeze(0) * 2, rows_E=(200,))
    rounded, _ = round_stack(weight_EOI, get_scheme("int4-g32-div7.5"), white, dampening=DAMPENING)
    assert torch.equal(rounded.codes, quantize(weight_EOI, get_scheme("int4-g32-div7.5")).codes)


@pytest.mark.parametrize("scheme", SCHEMES[:3])
def test_codes_at_the_measured_scales_are_those_of_round_to_nearest(scheme: str) -> None:
    weight_EOI, _ = stack()
    nearest = quantize(weight_EOI, get_scheme(scheme))
    for expert, weight_OI in enumerate(weight_EOI.float()):
        assert torch.equal(encode_at(weight_OI, take_expert(nearest, expert)).codes, nearest.codes[expert])


def test_a_group_of_zeros_stays_zero_whatever_is_moved_into_it() -> None:
    weight_OI = torch.ones(2, 64)
    weight_OI[0, :32] = 0
    measured = quantize(weight_OI, get_scheme("int4-g32-div7.5"))
    values_OI = dequantize(encode_at(torch.ones(2, 64), measured))
    assert values_OI[0, :32].tolist() == [0.0] * 32
    assert bool((values_OI[1] != 0).all())


@needs_library
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_library_and_the_definition_agree(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight_EOI, x_ENI = stack()
    seen = gptq_oracle.see(x_ENI)
    assert library_version().startswith("nvidia-modelopt 0.")
    theirs = round_stack(weight_EOI, get_scheme(scheme), seen, dampening=DAMPENING).tensor
    choose("oracle", monkeypatch)
    ours = round_stack(weight_EOI, get_scheme(scheme), seen, dampening=DAMPENING).tensor
    # fp32 and fp64 part by some 1e-6 of a step, and no ratio of this seed is that near to the border of two codes.
    assert torch.equal(theirs.codes, ours.codes)


@needs_library
@pytest.mark.filterwarnings("ignore")  # of its tensor quantizer
def test_the_codes_are_those_of_the_librarys_own_calibration() -> None:
    from modelopt.torch import quantization as mtq

    weight_EOI, x_ENI = stack()
    scheme = get_scheme("int4-g32-div7")  # scale absmax / 7, codes -8 to 7: its INT4
    ours = round_stack(weight_EOI, scheme, gptq_oracle.see(x_ENI), dampening=DAMPENING).tensor
    four_bits = {"num_bits": 4, "block_sizes": {-1: 32}}
    quantizers = [
        {"quantizer_name": "*", "enable": False},
        {"quantizer_name": "*weight_quantizer", "cfg": four_bits, "enable": True},
    ]
    for expert, x_NI in enumerate(x_ENI):
        model = torch.nn.Sequential(torch.nn.Linear(64, 48, bias=False))
        model[0].weight.data = weight_EOI[expert].float()
        settings = {"quant_cfg": quantizers, "algorithm": {"method": "gptq"}}
        calibrated = mtq.quantize(model, settings, lambda m, x_NI=x_NI: m(x_NI))
        # It writes c / (7 / absmax), which is c * (absmax / 7) but for three roundings: far less than half a step.
        steps_OI = calibrated[0].weight.detach() / ours.scales[expert].repeat_interleave(32, -1)
        assert torch.equal(steps_OI.round(), ours.codes[expert].float())


@pytest.mark.skipif(IS_INSTALLED, reason="nvidia-modelopt is installed")
def test_without_the_library_one_sentence_says_what_to_install() -> None:
    with pytest.raises(InputError, match=r"nvidia-modelopt.*is not installed.*pip install 'quantaudit\[modelopt\]'"):
        check_library()
