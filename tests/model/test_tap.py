"""The tap: silent by default, offered every point, and able to replace what it is given."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quantaudit.core.site import MODEL_LEVEL, Point, Site
from quantaudit.model.cache import Cache
from quantaudit.model.lm import LanguageModel
from quantaudit.model.tap import untapped
from tests.model.small_models import STRANGE, build_model, draw_tokens, segments
from tests.model.taps import Recorder, Replacer

TOKENS = draw_tokens(STRANGE, 8, seed=1)
IN_EVERY_LAYER = (Point.ATTN_IN, Point.ATTN_OUT, Point.MLP_IN, Point.MLP_OUT, Point.HIDDEN)
IN_SPARSE_LAYERS = (
    Point.ROUTER_LOGITS,
    Point.TOP_K_IDS,
    Point.GATE_WEIGHTS,
    Point.EXPERT_INPUT,
    Point.EXPERT_HIDDEN,
    Point.COMBINE,
)
IN_CACHED_KDA_LAYERS = (Point.KDA_STATE, Point.CONV_WINDOW)


@pytest.fixture(scope="module")
def strange() -> LanguageModel:
    return build_model(STRANGE, seed=6)


def run(model: LanguageModel, tap: Recorder | Replacer, cache: Cache | None = None) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(TOKENS, segments(5, 3), cache=cache, tap=tap, dtype=torch.float64)
    return logits


def test_default_tap_is_the_identity() -> None:
    value = torch.ones(2)
    assert untapped(Site(0, Point.HIDDEN), value) is value


def test_every_point_is_offered_where_it_exists_and_nowhere_else(strange: LanguageModel) -> None:
    seen = Recorder()
    run(strange, seen, Cache())
    expected = {Site(layer, point) for layer in range(7) for point in IN_EVERY_LAYER}
    expected |= {Site(layer, point) for layer in (2, 4, 6) for point in IN_SPARSE_LAYERS}
    expected |= {Site(layer, point) for layer in (0, 2, 3, 5, 6) for point in IN_CACHED_KDA_LAYERS}
    expected |= {Site(layer, Point.LATENT_CACHE) for layer in (1, 4)}
    expected |= {Site(MODEL_LEVEL, Point.FINAL_MIX), Site(MODEL_LEVEL, Point.LOGITS)}
    assert set(seen) == expected
    assert {site.point for site in seen} == set(Point)


def test_shapes_are_those_that_the_points_declare(strange: LanguageModel) -> None:
    seen = Recorder()
    run(strange, seen, Cache())
    shapes = {point: tuple(seen[Site(2, point)].shape) for point in (*IN_EVERY_LAYER, *IN_SPARSE_LAYERS)}
    assert all(shapes[point] == (8, 20) for point in IN_EVERY_LAYER)
    assert [shapes[point] for point in IN_SPARSE_LAYERS] == [(8, 9), (8, 3), (8, 3), (24, 10), (24, 13), (8, 10)]
    assert seen[Site(2, Point.KDA_STATE)].shape == (2, 4, 7, 7)
    assert seen[Site(2, Point.CONV_WINDOW)].shape == (2, 3 * 28, 3)
    assert seen[Site(1, Point.LATENT_CACHE)].shape == (2, 5, 8 + 3)
    assert seen[Site(MODEL_LEVEL, Point.FINAL_MIX)].shape == (8, 20)
    assert seen[Site(MODEL_LEVEL, Point.LOGITS)].shape == (8, 37)
    ids = seen[Site(2, Point.TOP_K_IDS)]
    assert ids.dtype is torch.int64
    assert (ids[:, 1:] > ids[:, :-1]).all()


def test_observing_changes_no_bit(strange: LanguageModel) -> None:
    with torch.no_grad():
        assert torch.equal(run(strange, Recorder()), strange(TOKENS, segments(5, 3), dtype=torch.float64))


def test_replacing_by_the_same_values_changes_no_bit(strange: LanguageModel) -> None:
    seen = Recorder()
    before = run(strange, seen, Cache())
    copies = Replacer({site: torch.clone for site in seen})
    assert torch.equal(run(strange, copies, Cache()), before)


@pytest.mark.parametrize("point", [p for p in Point if p not in (Point.KDA_STATE, Point.CONV_WINDOW, Point.TOP_K_IDS)])
def test_a_replaced_value_is_what_the_forward_goes_on_with(strange: LanguageModel, point: Point) -> None:
    seen = Recorder()
    before = run(strange, seen, Cache())
    site = next(s for s in seen if s.point is point)
    changed = Replacer({site: lambda x: x + 0.5 * torch.arange(x.shape[-1])})
    assert (run(strange, changed, Cache()) - before).abs().max() > 1e-4
    earlier = [s for s in list(seen)[: list(seen).index(site)] if s.layer != MODEL_LEVEL]
    assert all(torch.equal(changed.seen[s], seen[s]) for s in earlier)


@pytest.mark.parametrize("point", [Point.KDA_STATE, Point.CONV_WINDOW])
def test_a_replaced_memory_is_what_the_next_call_reads(strange: LanguageModel, point: Point) -> None:
    def next_logits(tap: Recorder | Replacer) -> Tensor:
        cache = Cache()
        run(strange, tap, cache)
        with torch.no_grad():
            logits: Tensor = strange(torch.tensor([1, 2]), segments(1, 1), cache=cache, dtype=torch.float64)
        return logits

    changed = Replacer({Site(0, point): lambda x: x + 1.0})
    assert (next_logits(changed) - next_logits(Recorder())).abs().max() > 1e-4


def test_routing_forced_to_its_own_choice_changes_no_bit_and_to_another_does(strange: LanguageModel) -> None:
    seen = Recorder()
    before = run(strange, seen)
    sites = [Site(layer, Point.TOP_K_IDS) for layer in STRANGE.moe_layers()]
    own = {site: (lambda ids: lambda _: ids)(seen[site]) for site in sites}
    assert torch.equal(run(strange, Replacer(own)), before)
    others = {site: (lambda ids: lambda _: (ids + 1) % 9)(seen[site]) for site in sites}
    forced = Replacer(others)
    assert (run(strange, forced) - before).abs().max() > 1e-2
    assert all(torch.equal(forced.seen[site], (seen[site] + 1) % 9) for site in sites)
