"""What `apply` does is what `recognise` finds, in the smallest inputs that show it too."""

from __future__ import annotations

import pytest
import torch

from quantaudit.core.errors import InputError
from quantaudit.identity.mismatches import (
    cut_groups,
    exponent_from_ratio,
    permuted_experts,
    quantized_twice,
    shared_scale,
    split_blocks,
    stale,
    zero_point,
)
from quantaudit.identity.mismatches.protocol import Kind, Layer, Mismatch, Projection, Weight
from quantaudit.identity.mismatches.registry import (
    MISMATCHES,
    get_mismatch,
    is_latent,
    mismatch_names,
    search_mismatches,
)
from quantaudit.identity.mismatches.scoring import num_differing
from quantaudit.identity.mismatches.weights import plain_weight, quantize_weight
from quantaudit.numerics import dequantize, fake_quantize, get_scheme
from tests.identity.mismatches.planted import trained, untouched

MXFP4, INT4 = get_scheme("mxfp4-even"), get_scheme("int4-g32-div7.5")


def whole(rows: list[list[float]], scheme_name: str = "mxfp4-even") -> Layer:
    """Returns one matrix, every row filled with zeros to a group of 32."""
    filled = torch.tensor([row + [0.0] * (32 - len(row)) for row in rows])
    return {Projection.WHOLE: quantize_weight(filled, get_scheme(scheme_name))}


def values(layer: Layer | None) -> list[list[float]]:
    assert layer is not None
    rows: list[list[float]] = layer[Projection.WHOLE].values.tolist()
    return rows


@pytest.mark.parametrize("mismatch", MISMATCHES, ids=mismatch_names())
@pytest.mark.parametrize("scheme", ["mxfp4-even", "int4-g32-div7.5"])
def test_what_is_applied_is_recognised(mismatch: Mismatch, scheme: str) -> None:
    train = (untouched if mismatch.ABOUT.name == "included-layer" else trained)(get_scheme(scheme))
    serve = mismatch.apply(train)
    if serve is None or is_latent(mismatch, train):
        return
    assert serve.keys() == train.keys()
    found = mismatch.recognise(train, serve)
    assert found is not None and (found.about, found.explains) == (mismatch.ABOUT, 1.0)
    assert found.train != found.serve


@pytest.mark.parametrize("mismatch", MISMATCHES, ids=mismatch_names())
def test_applying_leaves_the_trainer_alone(mismatch: Mismatch) -> None:
    train = trained(INT4)
    mismatch.apply(train)
    assert num_differing(train, trained(INT4)) == 0


def test_kinds_are_those_of_the_catalogue_of_faults() -> None:
    assert [kind.value for kind in Kind] == [f"K{i}" for i in range(1, 16)]
    assert len(set(mismatch_names())) == len(MISMATCHES) == 17


def test_exponent_of_the_ratio_saturates_block_maxima() -> None:
    train = whole([[2.7, 0.2], [5.5, 0.3]])
    assert [row[:2] for row in values(train)] == [[3.0, 0.25], [6.0, 0.5]]
    assert [row[:2] for row in values(exponent_from_ratio.apply(train))] == [[1.5, 0.25], [3.0, 0.25]]


def test_split_blocks_of_four_exchange_the_middle() -> None:
    codes = torch.arange(4)
    assert split_blocks.read_as_halves(codes, 4).tolist() == [0, 2, 1, 3]
    assert split_blocks.read_as_neighbours(codes, 4).tolist() == [0, 2, 1, 3]


def test_split_blocks_of_eight_differ_by_direction() -> None:
    codes = torch.arange(8)
    assert split_blocks.read_as_halves(codes, 8).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert split_blocks.read_as_neighbours(codes, 8).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


def test_zero_point_of_seven_turns_zero_into_minus_one_step() -> None:
    train = whole([[3.5, 0.0]], "int4-g32-div7")
    assert values(zero_point.apply(train))[0][:2] == [3.0, -0.5]


def test_quantizing_again_by_a_wide_divisor_shrinks_the_maximum() -> None:
    train = {Projection.WHOLE: quantize_weight(torch.tensor([[1.0, 0.3] + [0.0] * 30]).bfloat16(), INT4)}
    maxima = [values(train)[0][0]]
    for _ in range(3):
        layer = quantized_twice.apply(train)
        assert layer is not None
        train = dict(layer)
        maxima.append(values(train)[0][0])
    assert [round(value, 3) for value in maxima] == [0.934, 0.871, 0.812, 0.758]


def test_a_shard_boundary_inside_a_group_gives_both_parts_their_own_scale() -> None:
    x = torch.zeros(1, 64)
    x[0, :24], x[0, 24:32] = 1.0, 100.0
    train = {Projection.WHOLE: quantize_weight(torch.cat((x, x), -1)[:, :96], MXFP4)}  # two shards of 48
    assert train[Projection.WHOLE].values[0, 0] == 0.0
    served = cut_groups.quantize_in_shards(x[:, :48], MXFP4, 2, -1)  # two shards of 24
    assert served[0, 0] == 1.0


def test_shards_of_whole_groups_cut_nothing() -> None:
    train = {Projection.WHOLE: quantize_weight(torch.randn(4, 128), MXFP4)}
    assert cut_groups.apply(train) is None
    assert not is_latent(cut_groups, train)


def test_one_expert_has_no_order() -> None:
    assert permuted_experts.apply({Projection.WHOLE: quantize_weight(torch.randn(1, 4, 32), MXFP4)}) is None


def test_equal_experts_stay_in_their_places() -> None:
    master = torch.randn(4, 8, 32)
    master[2] = master[1]
    train = {Projection.WHOLE: quantize_weight(master, MXFP4)}
    order = torch.tensor([3, 1, 2, 0])
    serve = {Projection.WHOLE: Weight(values=train[Projection.WHOLE].values[order])}
    found = permuted_experts.recognise(train, serve)
    assert found is not None and found.serve == "0 holds 3, 3 holds 0"
    assert found.experts == {Projection.WHOLE: (0, 3)}


def test_only_the_stale_expert_is_named() -> None:
    train = trained(MXFP4)
    down = train[Projection.DOWN]
    served = down.values.clone()
    served[2] = fake_quantize(down.earlier[1][2], MXFP4)
    found = stale.recognise(train, {**train, Projection.DOWN: Weight(values=served)})
    assert found is not None
    assert (found.serve, found.explains, found.experts) == ("2 updates earlier", 1.0, {Projection.DOWN: (2,)})


def test_two_faults_at_once_explain_a_part_each() -> None:
    train = trained(MXFP4)
    first = get_mismatch("nibble-order").apply({Projection.GATE: train[Projection.GATE]})
    second = get_mismatch("stale").apply({Projection.DOWN: train[Projection.DOWN]})
    assert first is not None and second is not None
    found = search_mismatches(train, {**train, **first, **second})
    assert {finding.about.name for finding in found[:2]} == {"nibble-order", "stale"}
    # Each explains its own projection, bit for bit, and of the other what coincides by chance.
    nibbles, old = sorted(found[:2], key=lambda finding: finding.about.name)
    assert nibbles.num_left <= num_differing({Projection.DOWN: train[Projection.DOWN]}, second)
    assert old.num_left <= num_differing({Projection.GATE: train[Projection.GATE]}, first)


def test_a_shared_scale_over_both_is_measured_over_both() -> None:
    gate, up = torch.zeros(1, 32), torch.zeros(1, 32)
    gate[0, 0], up[0, :2] = 6.0, torch.tensor([0.75, 0.25])
    train = {Projection.GATE: quantize_weight(gate, MXFP4), Projection.UP: quantize_weight(up, MXFP4)}
    assert train[Projection.UP].values[0, :2].tolist() == [0.75, 0.25]
    served = shared_scale.apply(train)
    assert served is not None
    assert served[Projection.UP].values[0, :2].tolist() == [1.0, 0.0]  # the scale of gate is 1: both are ties to even
    assert served[Projection.GATE].values[0, 0] == 6.0


def test_codes_are_needed_for_faults_of_codes() -> None:
    plain = {Projection.WHOLE: plain_weight(torch.randn(4, 32))}
    names = ("nibble-order", "split-blocks", "transposed-scales", "exponent-offset", "zero-point", "cut-groups")
    assert [get_mismatch(name).apply(plain) for name in names] == [None] * len(names)


def test_nan_equals_nan_and_the_sign_of_zero_is_no_difference() -> None:
    a, b = torch.tensor([[torch.nan, 0.0, 1.0]]), torch.tensor([[torch.nan, -0.0, 2.0]])
    assert num_differing({Projection.WHOLE: Weight(values=a)}, {Projection.WHOLE: Weight(values=b)}) == 1


def test_a_server_in_bf16_is_compared_in_bf16() -> None:
    train = {Projection.WHOLE: quantize_weight(torch.randn(4, 64), INT4)}
    serve = {Projection.WHOLE: Weight(values=train[Projection.WHOLE].values.bfloat16())}
    assert num_differing(train, serve) == 0


def test_values_are_what_the_changed_codes_decode_to() -> None:
    train = trained(MXFP4)
    for name in ("nibble-order", "exponent-offset", "stale", "source-dtype", "permuted-experts"):
        served = get_mismatch(name).apply(train)
        assert served is not None
        for weight in served.values():
            assert weight.quantized is not None
            assert torch.equal(weight.values.nan_to_num(), dequantize(weight.quantized, torch.float32).nan_to_num())


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="nibble-order"):
        get_mismatch("nible-order")
