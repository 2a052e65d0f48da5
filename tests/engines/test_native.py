"""The native engine: neighbours in a batch change nothing, decoding is teacher forcing, interventions take effect."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quantaudit.core.batch import Sequence
from quantaudit.core.engine import Trace
from quantaudit.core.recipe import ComputeDtype, Execution
from quantaudit.core.site import Point, Site
from quantaudit.engines.native import NativeEngine
from quantaudit.engines.realization import Realization, apply_recipe, pass_through, share_parameters
from tests.engines.small import CPU, SMALL, WIDEST, draw_sequences, experts_in
from tests.tolerances import whole_stack

EVERY_POINT = frozenset(Point)
LENGTHS = (9, 4, 17, 5)


def run(realization: Realization, batch: list[Sequence], observe: frozenset[Point] = frozenset()) -> Trace:
    """Runs a forward of a fresh engine."""
    return NativeEngine(realization, CPU).forward(batch, observe=observe)


def tolerance(logits: Tensor) -> float:
    """Returns how far another batch may move fp32 logits: the order of summation in the products changes."""
    return whole_stack(torch.float32, layers=4, width=WIDEST, scale=float(logits.abs().max()))


@pytest.mark.parametrize("weight", [None, "mxfp4-even"])
@pytest.mark.parametrize("activation", [None, "mxfp8-e4m3-even"])
def test_neighbours_change_nothing(plain_hi: Realization, weight: str | None, activation: str | None) -> None:
    is_hi = weight is None and activation is None
    realization = plain_hi if is_hi else apply_recipe(plain_hi, experts_in(weight, activation))
    batch = draw_sequences(*LENGTHS)
    ids = frozenset({Point.TOP_K_IDS})
    together = run(realization, batch, ids)
    alone = [run(realization, [sequence], ids) for sequence in batch]
    expected = torch.cat([t.logits_MV for t in alone])
    for site, chosen in together.sites.items():
        assert torch.equal(chosen, torch.cat([t.sites[site] for t in alone]))
    assert torch.equal(together.target_M, torch.cat([t.target_M for t in alone]))
    # Another rounding of an input moves its E4M3 code only across a tie: a chance of about 2^-24 / 2^-4 a value, 1 %
    # for the 10,000 values here. With this seed none is crossed, so the tolerance is that of the plain forward.
    assert (together.logits_MV - expected).abs().max() <= tolerance(expected)


def test_a_trace_describes_its_batch(plain_hi: Realization) -> None:
    batch = draw_sequences(*LENGTHS)
    trace = run(plain_hi, batch)
    assert trace.counts_B == tuple(s.num_scored for s in batch)
    assert trace.lengths_B == tuple(n - 1 for n in LENGTHS)
    assert trace.target_M.tolist() == [t for s in batch for t in s.tokens[s.scored_from :]]
    assert trace.logits_MV.shape == (sum(trace.counts_B), SMALL.vocab_size)
    assert trace.logits_MV.dtype == torch.float32 and not trace.logits_MV.requires_grad


def test_the_identity_control_is_hi_bit_for_bit(plain_hi: Realization, packed_hi: Realization) -> None:
    batch = draw_sequences(*LENGTHS)
    for hi in (plain_hi, packed_hi):
        expected, control = run(hi, batch, EVERY_POINT), run(pass_through(hi), batch, EVERY_POINT)
        assert torch.equal(control.logits_MV, expected.logits_MV)
        assert control.sites.keys() == expected.sites.keys()
        assert all(torch.equal(control.sites[site], value) for site, value in expected.sites.items())


def test_only_the_points_asked_for_are_kept(plain_hi: Realization) -> None:
    batch = draw_sequences(*LENGTHS)
    assert run(plain_hi, batch).sites == {}
    kept = run(plain_hi, batch, frozenset({Point.TOP_K_IDS, Point.HIDDEN})).sites
    wanted = {Site(i, Point.TOP_K_IDS) for i in SMALL.moe_layers()}
    assert set(kept) == wanted | {Site(i, Point.HIDDEN) for i in range(SMALL.num_hidden_layers)}
    tokens = sum(LENGTHS) - len(LENGTHS)
    assert kept[Site(1, Point.TOP_K_IDS)].shape == (tokens, SMALL.num_experts_per_token)
    assert kept[Site(0, Point.HIDDEN)].shape == (tokens, SMALL.hidden_size)


def test_observing_changes_nothing(plain_hi: Realization) -> None:
    batch = draw_sequences(*LENGTHS)
    assert torch.equal(run(plain_hi, batch).logits_MV, run(plain_hi, batch, EVERY_POINT).logits_MV)


def test_forced_routing_takes_effect_and_is_what_is_seen(plain_hi: Realization) -> None:
    engine, batch = NativeEngine(plain_hi, CPU), draw_sequences(*LENGTHS)
    site = Site(2, Point.TOP_K_IDS)
    free = engine.forward(batch, observe=frozenset({Point.TOP_K_IDS}))
    forced = engine.forward(
        batch,
        observe=frozenset({Point.TOP_K_IDS}),
        intervene={site: lambda ids_NK: torch.tensor([0, 1]).expand_as(ids_NK)},
    )
    assert set(forced.sites[site].flatten().tolist()) == {0, 1} != set(free.sites[site].flatten().tolist())
    assert torch.equal(forced.sites[Site(1, Point.TOP_K_IDS)], free.sites[Site(1, Point.TOP_K_IDS)])
    assert not torch.equal(forced.logits_MV, free.logits_MV)
    replayed = engine.forward(batch, intervene={site: lambda _: free.sites[site]})
    assert torch.equal(replayed.logits_MV, free.logits_MV)


def test_bfloat16_is_run_in_bfloat16(plain_hi: Realization) -> None:
    batch = draw_sequences(*LENGTHS)
    narrow = replace(plain_hi, execution=Execution(dtype=ComputeDtype.BFLOAT16))
    trace = run(narrow, batch, frozenset({Point.HIDDEN}))
    assert trace.sites[Site(3, Point.HIDDEN)].dtype == torch.bfloat16
    assert trace.logits_MV.dtype == torch.float32
    assert torch.equal(trace.logits_MV, trace.logits_MV.bfloat16().float())


@pytest.mark.parametrize("scheme", [None, "mxfp4-even"])
def test_decoding_is_what_teacher_forcing_would_write(plain_hi: Realization, scheme: str | None) -> None:
    realization = plain_hi if scheme is None else apply_recipe(plain_hi, experts_in(scheme))
    engine = NativeEngine(realization, CPU)
    prompts = [s.tokens for s in draw_sequences(*LENGTHS)]
    answers = engine.decode(prompts, max_new=8)
    assert all(1 <= len(answer) <= 8 for answer in answers)
    batch = [Sequence(tokens=p + a, scored_from=len(p)) for p, a in zip(prompts, answers, strict=True)]
    trace = engine.forward(batch)
    top = trace.logits_MV.topk(2).values
    assert (top[:, 0] - top[:, 1]).min() > 2 * tolerance(trace.logits_MV), "a near tie would prove nothing"
    assert trace.logits_MV.argmax(-1).tolist() == [token for answer in answers for token in answer]


def test_decoding_a_batch_is_decoding_each_alone(plain_hi: Realization) -> None:
    engine = NativeEngine(plain_hi, CPU)
    prompts = [s.tokens for s in draw_sequences(*LENGTHS)]
    together = engine.decode(prompts, max_new=6)
    assert together == [engine.decode([prompt], max_new=6)[0] for prompt in prompts]


def test_the_end_token_stops_its_own_sequence_only(plain_hi: Realization) -> None:
    prompts = [s.tokens for s in draw_sequences(*LENGTHS)]
    free = NativeEngine(plain_hi, CPU).decode(prompts, max_new=6)
    end = free[0][2]
    model = share_parameters(plain_hi.model)
    model.config = replace(SMALL, eos_token_id=end)
    stopped = NativeEngine(replace(plain_hi, model=model), CPU).decode(prompts, max_new=6)
    assert stopped == [a[: a.index(end) + 1] if end in a else a for a in free]
    assert len(stopped[0]) <= 3 and max(map(len, stopped)) == 6
