"""The trainer computes with what it serves, learns with what it is told to, and routes as it is forced to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quantaudit.core.errors import InputError
from quantaudit.training.rl.decoding import Want
from quantaudit.training.rl.engine import RolloutEngine
from quantaudit.training.rl.learning import drop_even_groups, learn, micro_batches, recompute, score_answers
from quantaudit.training.rl.policy import DivergedError, Policy
from quantaudit.training.rl.rollouts import open_samples, write_answers
from quantaudit.training.rl.samples import Sample, Task, draw_tasks, is_right, reward_of
from quantaudit.training.rl.sampling import Sampling
from quantaudit.training.rl.settings import Replay, RlSettings, Trains
from quantaudit.training.rl.sync import deliver
from tests.training.rl.test_engine import delivery, requests
from tests.training.rl.tiny import SHORT, TINY, W4A8, tiny_model, world


def trainer(settings: RlSettings = SHORT) -> Policy:
    """Returns a trainer of the tiny model."""
    return Policy(tiny_model(), W4A8, settings)


def written(policy: Policy, settings: RlSettings = SHORT, *, with_routing: bool = False) -> list[Sample]:
    """Returns answers that the policy's weights wrote, with recomputed log-probabilities."""
    engine = RolloutEngine(TINY)
    deliver(engine, delivery(policy))
    before = open_samples(draw_tasks(world(), {"two-step": 1.0}, 3, 0, 0), settings)
    after = write_answers(engine, before, settings, 0, with_routing=with_routing)
    return recompute(policy, before, after, settings)


def test_the_forward_uses_the_weights_that_are_served() -> None:
    policy = trainer()
    with torch.no_grad():
        for master in policy.masters.values():
            master.add_(1e-4 * torch.randn(master.shape))  # off the grid of bf16, as a step would leave it
    policy.set_masters({name: m.detach().clone() for name, m in policy.masters.items()})
    dense = policy.dense()
    for name, parameter in policy.model.named_parameters():
        if name in dense:
            assert torch.equal(parameter.detach(), dense[name].float()), name
    for name, values in policy.values().items():
        packed = policy.schemes()[name]
        assert packed is not None
        assert not torch.equal(values, policy.expert_masters()[name])


@pytest.mark.parametrize("trains", list(Trains))
def test_only_what_is_told_to_learns(trains: Trains) -> None:
    settings = SHORT.model_copy(update={"trains": trains, "drops_even_groups": False})
    policy = trainer(settings)
    before = {name: m.detach().clone() for name, m in policy.masters.items()}
    learn(policy, written(policy, settings), settings, 0)
    moved = {name for name, m in policy.masters.items() if not torch.equal(m.detach(), before[name])}
    experts = {name for name in before if ".experts." in name}
    routers = {name for name in before if name.endswith("gate.weight")}
    assert experts <= moved
    assert not any("correction_bias" in name for name in moved)
    match trains:
        case Trains.EXPERTS:
            assert moved == experts
        case Trains.ALL_BUT_ROUTERS:
            assert not moved & routers and "lm_head.weight" in moved
        case Trains.ALL:
            assert routers <= moved and "lm_head.weight" in moved


def test_a_small_step_raises_what_paid_and_lowers_what_did_not() -> None:
    settings = SHORT.model_copy(update={"learning_rate": 1e-3, "drops_even_groups": False})
    policy = trainer(settings)
    samples = drop_even_groups(written(policy, settings), settings)
    learn(policy, samples, settings, 0)
    after = score_answers(policy, samples, settings, Replay.NONE)
    change = [float(now.sum()) - sum(s.recomputed) for now, s in zip(after, samples, strict=True)]
    by_group: dict[str, dict[bool, float]] = {}
    for sample, moved in zip(samples, change, strict=True):
        paid = world_pays(sample, settings)
        by_group.setdefault(sample.task.group, {})[paid] = moved
    assert by_group
    gain = sum(values[True] - values[False] for values in by_group.values())
    assert gain > 0.0


def world_pays(sample: Sample, settings: RlSettings) -> bool:
    """Tells whether the answer was worth something."""
    return reward_of(sample, settings.reward) > 0.0


@pytest.mark.parametrize("replay", [Replay.IDS, Replay.IDS_AND_WEIGHTS])
def test_forced_routing_takes_the_routers_out_of_the_forward(replay: Replay) -> None:
    policy = trainer()
    samples = written(policy, with_routing=True)
    right = torch.cat(score_answers(policy, samples, SHORT, replay))
    natural = torch.cat(score_answers(policy, samples, SHORT, Replay.NONE))
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if name.endswith("gate.weight"):
                parameter.add_(torch.randn(parameter.shape))
    wrong = torch.cat(score_answers(policy, samples, SHORT, replay))
    assert not torch.equal(torch.cat(score_answers(policy, samples, SHORT, Replay.NONE)), natural)
    # With ids alone the weights are still the router's own, so they move; with both, nothing of it is left.
    assert torch.equal(wrong, right) == (replay is Replay.IDS_AND_WEIGHTS)


def test_answers_that_are_continued_carry_the_version_of_every_token() -> None:
    settings = SHORT.model_copy(update={"partial_tokens": 2, "sampling": Sampling()})
    engine = RolloutEngine(TINY)
    policy = trainer()
    deliver(engine, delivery(policy))
    samples = open_samples(draw_tasks(world(), {"two-step": 1.0}, 2, 0, 0), settings)
    first = write_answers(engine, samples, settings, 0, with_routing=False)
    assert all(s.versions == (0, 0) and not s.is_finished for s in first)
    deliver(engine, delivery(policy, 1))
    second = write_answers(engine, first, settings, 1, with_routing=False)
    assert all(s.versions == (0, 0, 1, 1) for s in second)
    # The weights are the same, so what was written in two parts is what would have been written in one.
    whole = write_answers(engine, samples, settings.model_copy(update={"partial_tokens": 4}), 1, with_routing=False)
    assert [s.written for s in second] == [s.written for s in whole]


def test_a_memory_of_an_unfinished_answer_gives_the_tokens_that_reading_it_again_gives() -> None:
    settings = SHORT.model_copy(update={"partial_tokens": 2})
    results = []
    for flushed in (True, False):
        engine = RolloutEngine(TINY)
        deliver(engine, delivery(trainer()))
        samples = open_samples(draw_tasks(world(), {"two-step": 1.0}, 2, 0, 0), settings)
        half = write_answers(engine, samples, settings, 0, with_routing=False)
        if flushed:
            deliver(engine, delivery(trainer(), 1))
        results.append([s.written for s in write_answers(engine, half, settings, 0, with_routing=False)])
    assert results[0] == results[1]


def test_right_is_right_to_the_byte_and_to_the_end() -> None:
    task = Task(group="g", family="two-step", prompt=(256, 49), answer="12")
    assert is_right(Sample(key="a", task=task, written=(49, 50, 257)))
    for written_tokens in ((49, 50), (49, 50, 32, 257), (49, 257), (49, 51, 257)):
        assert not is_right(Sample(key="a", task=task, written=written_tokens))


def test_tasks_are_of_the_training_split_and_a_function_of_seed_and_step() -> None:
    one, same, other = (draw_tasks(world(), {"two-step": 1.0}, 4, seed, 7) for seed in (0, 0, 1))
    assert one == same and one != other
    with pytest.raises(InputError, match="no-such"):
        draw_tasks(world(), {"no-such": 1.0}, 1, 0, 0)


def test_micro_batches_keep_order_and_bound() -> None:
    task = Task(group="g", family="two-step", prompt=(256, 1, 2), answer="1")
    samples = [Sample(key=str(n), task=task, written=(1,) * n) for n in (1, 2, 3, 40, 1)]
    pieces = micro_batches(samples, 12)
    assert [piece.stop for piece in pieces] == [2, 3, 4, 5]
    assert micro_batches([], 12) == []


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    settings = SHORT.model_copy(update={"drops_even_groups": False})
    policy = trainer(settings)
    samples = written(policy, settings)
    broken = [replace(s, recomputed=tuple(-1e6 for _ in s.recomputed)) for s in samples]
    before = {name: m.detach().clone() for name, m in policy.masters.items()}
    with pytest.raises(DivergedError):
        learn(policy, broken, settings, 0)
    assert all(torch.equal(m.detach(), before[name]) for name, m in policy.masters.items())


def test_what_is_wanted_is_returned() -> None:
    engine = RolloutEngine(TINY)
    deliver(engine, delivery(trainer()))
    plain = engine.generate(requests(2), Sampling(), Want())[0]
    full = engine.generate(requests(2), Sampling(), Want(routing=True, logits=True))[0]
    assert plain.routing is None and plain.logits_TV is None
    assert full.routing is not None and full.logits_TV is not None
    assert full.logits_TV.shape == (len(full.tokens), TINY.vocab_size)
    assert full.routing.ids_TLK.shape == (len(requests(2)[0].tokens) + len(full.tokens) - 1, 2, 2)
