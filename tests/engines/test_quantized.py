"""The modules that replace a matrix product compute it with the decoded weight and the quantized rows, bit for bit."""

from __future__ import annotations

import pytest
import torch

from quantaudit.checkpoint.config_json import read_config
from quantaudit.core.probe import Split
from quantaudit.core.resources import embedded_model_folder
from quantaudit.engines.quantized import QuantizedGroupedLinear, QuantizedLinear, quantize_rows
from quantaudit.engines.stored import store
from quantaudit.evaluation.plan import plan_batches
from quantaudit.model.linear import GroupedLinear, Linear
from quantaudit.numerics import fake_quantize, get_scheme, quantize
from quantaudit.numerics.fused import COMPILE_AFTER
from quantaudit.probes.world import default_probes

COUNTS = [5, 0, 1, 4]
ROW_SCHEMES = ("mxfp8-e4m3-even", "nvfp4", "fp8-tensor", "fp8-channel", "int8-channel", "nf4-b64")


@pytest.mark.parametrize("name", ["mxfp4-even", "nvfp4", "int4-g32-div7.5", "fp8-block128", "nf4-b64", "int2-g32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_product_is_that_of_the_decoded_weight(name: str, dtype: torch.dtype) -> None:
    plain = GroupedLinear(len(COUNTS), 64, 32)
    q = quantize(torch.randn(len(COUNTS), 32, 64), get_scheme(name))
    plain.weight.data = store(q).decode(dtype)
    x = torch.randn(sum(COUNTS), 64, dtype=dtype)
    assert torch.equal(QuantizedGroupedLinear(store(q), None)(x, COUNTS), plain(x, COUNTS))


def test_product_is_that_of_the_decoded_weight() -> None:
    plain = Linear(64, 32)
    q = quantize(torch.randn(32, 64), get_scheme("mxfp4-even"))
    plain.weight.data = store(q).decode(torch.float32)
    x = torch.randn(5, 64)
    assert torch.equal(QuantizedLinear(store(q), None)(x), plain(x))


def test_inputs_are_quantized_before_the_product() -> None:
    scheme = get_scheme("mxfp8-e4m3-even")
    plain = GroupedLinear(len(COUNTS), 64, 32)
    plain.weight.data = torch.randn(len(COUNTS), 32, 64)
    x = torch.randn(sum(COUNTS), 64)
    quantized = QuantizedGroupedLinear(plain.weight.detach(), scheme)(x, COUNTS)
    assert torch.equal(quantized, plain(fake_quantize(x, scheme), COUNTS))
    assert not torch.equal(quantized, plain(x, COUNTS))


@pytest.mark.parametrize("name", ROW_SCHEMES)
def test_a_row_does_not_depend_on_the_others(name: str) -> None:
    scheme = get_scheme(name)
    x = torch.randn(6, 64) * torch.tensor([1.0, 1e3, 1e-3, 0.0, 5.0, 2.0])[:, None]
    together = quantize_rows(x, scheme)
    alone = torch.cat([quantize_rows(row, scheme) for row in x.split(1)])
    assert together.shape == x.shape
    assert torch.equal(together, alone)


def test_rows_of_grouped_schemes_are_those_of_the_reference() -> None:
    scheme = get_scheme("mxfp8-e4m3-even")
    x = torch.randn(6, 64)
    assert torch.equal(quantize_rows(x, scheme), fake_quantize(x, scheme))


def test_no_rows_and_no_scheme_are_left_alone() -> None:
    x = torch.randn(3, 64)
    assert quantize_rows(x, None) is x
    assert quantize_rows(x[:0], get_scheme("nvfp4")).shape == (0, 64)


def test_an_audit_twice_as_large_as_the_default_never_waits_for_a_compiler() -> None:
    config = read_config(embedded_model_folder()).model
    batches = plan_batches(default_probes(Split.AUDIT), 96)
    num_tokens = sum(len(sequence.tokens) for batch in batches for sequence in batch.sequences)
    widths = 2 * config.routed_expert_hidden_size + config.moe_intermediate_size  # the inputs of w1, w3 and w2
    num_values = num_tokens * config.num_experts_per_token * len(config.moe_layers()) * widths
    assert 0 < 2 * num_values < COMPILE_AFTER
