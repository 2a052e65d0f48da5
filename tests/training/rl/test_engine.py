"""The engine serves what its layouts hold, refuses what its state forbids, and is the same in another process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import torch

from quantaudit.core.recipe import ComputeDtype
from quantaudit.training.rl.decoding import Continuation, Request, Want, decode
from quantaudit.training.rl.engine import EngineRefusedError, RolloutEngine, decode_experts
from quantaudit.training.rl.engine_client import EngineClient, EngineDiedError
from quantaudit.training.rl.execution import EngineExecution
from quantaudit.training.rl.faults import Flush, NoFaults, PostLoad
from quantaudit.training.rl.memory import PrefixMemory
from quantaudit.training.rl.placement import Placement, deal_experts
from quantaudit.training.rl.policy import Policy, pack_experts
from quantaudit.training.rl.replay import canary_requests, replay_rollouts, run_canary
from quantaudit.training.rl.sampling import GREEDY, Sampling
from quantaudit.training.rl.state import EngineState, loaded_weights
from quantaudit.training.rl.sync import Declared, Delivery, QuantizeAt, Shipment, deliver, plan_delivery
from tests.training.rl.tiny import SHORT, TINY, W4A8, tiny_model, world

PLACEMENT = deal_experts(TINY.num_experts, 2)


def policy(seed: int = 0) -> Policy:
    """Returns a trainer of the tiny model."""
    return Policy(tiny_model(seed), W4A8, SHORT)


def delivery(trainer: Policy, version: int = 0, post: PostLoad | None = None) -> Delivery:
    """Returns what a clean sync delivers, with another post-load step if one is given."""
    shipment = Shipment(
        version=version,
        experts=pack_experts(trainer.exported(), trainer.schemes(), QuantizeAt.TRAINER),
        arriving={},
        dense=trainer.dense(),
    )
    declared = Declared(placement=PLACEMENT, execution=trainer.declared_execution())
    planned = plan_delivery(shipment, declared, NoFaults(), 0, bucket_bytes=1 << 16)
    if post is None:
        return planned
    return Delivery(
        version=version,
        buckets=planned.buckets,
        post=post,
        flush=planned.flush,
        placement=planned.placement,
        execution=planned.execution,
    )


def served(trainer: Policy) -> RolloutEngine:
    """Returns an engine that serves these weights."""
    engine = RolloutEngine(TINY)
    deliver(engine, delivery(trainer))
    return engine


def requests(count: int = 5, max_new: int = 4) -> list[Request]:
    """Returns requests of several lengths, two of them with one prompt."""
    prompts = [canary_requests(world())[n % 3].tokens for n in range(count)]
    return [Request(key=f"r{n}", tokens=tokens, max_new=max_new) for n, tokens in enumerate(prompts)]


def bits(continuations: list[Continuation]) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """Returns tokens and log-probabilities."""
    return [(c.tokens, c.logprobs) for c in continuations]


@pytest.fixture(scope="module")
def client() -> Iterator[EngineClient]:
    """Starts one engine process for the tests that share it."""
    engine = EngineClient(TINY, timeout_seconds=60.0)
    yield engine
    engine.close()


@pytest.mark.slow
def test_another_process_gives_the_same_bits_and_the_same_state(client: EngineClient) -> None:
    trainer = policy()
    here = served(trainer)
    deliver(client, delivery(trainer))
    want = Want(routing=True, logits=True)
    mine, theirs = (e.generate(requests(), Sampling(temperature=0.8), want) for e in (here, client))
    assert bits(mine) == bits(theirs)
    assert [len(c.tokens) for c in mine] == [4] * 5
    for a, b in zip(mine, theirs, strict=True):
        assert a.routing is not None and b.routing is not None and a.logits_TV is not None and b.logits_TV is not None
        assert torch.equal(a.routing.ids_TLK, b.routing.ids_TLK)
        assert torch.equal(a.routing.weights_TLK, b.routing.weights_TLK)
        assert torch.equal(a.logits_TV, b.logits_TV)
    _assert_equal_states(here.export_state(), client.export_state())
    assert client.version == here.version == 0


def _assert_equal_states(mine: EngineState, theirs: EngineState) -> None:
    assert mine.loaded.keys() == theirs.loaded.keys() and mine.derived.keys() == theirs.derived.keys()
    for key, weight in mine.loaded.items():
        other = theirs.loaded[key]
        assert weight.versions == other.versions and weight.scheme == other.scheme and weight.shape == other.shape
        assert all(torch.equal(t, other.fields[field]) for field, t in weight.fields.items())
    for place, layout in mine.derived.items():
        assert torch.equal(layout.tiles, theirs.derived[place].tiles)
        assert layout.parts == theirs.derived[place].parts and layout.version == theirs.derived[place].version


def test_what_the_kernel_reads_is_what_the_trainer_multiplies_with() -> None:
    trainer = policy()
    state = served(trainer).export_state()
    for name, values in decode_experts(state.derived, state.placement).items():
        assert torch.equal(values, trainer.values()[name])
    assert loaded_weights(state, PLACEMENT).keys() == trainer.values().keys()


def test_names_are_the_engines_and_gate_and_up_are_fused() -> None:
    state = served(policy()).export_state()
    names = {key.name for key in state.loaded}
    assert "layers.1.moe.experts.w13" in names and "head.weight" in names
    assert not any(name.startswith("model.") or "self_attn" in name for name in names)
    assert {(name, shard) for name, shard in state.derived} == {
        (f"layers.{layer}.moe.experts.{stack}", shard)
        for layer in (1, 2)
        for stack in ("w13", "w2")
        for shard in (0, 1)
    }


def test_a_layout_that_is_not_rebuilt_goes_on_serving_the_old_weights() -> None:
    old, new = policy(0), policy(1)
    engine = served(old)
    before = decode_experts(engine.export_state().derived, PLACEMENT)
    deliver(engine, delivery(new, 1, PostLoad(rebuild=("layers.2.*",))))
    after = decode_experts(engine.export_state().derived, PLACEMENT)
    for name in before:
        wanted = before[name] if name.startswith("layers.1.") else new.values()[name]
        assert torch.equal(after[name], wanted)
    assert engine.version == 1 and engine.export_state().oldest_derived == 0


def test_stale_layouts_change_tokens() -> None:
    old, new = policy(0), policy(1)
    stale, fresh = served(old), served(old)
    deliver(stale, delivery(new, 1, PostLoad(rebuild=())))
    deliver(fresh, delivery(new, 1))
    assert bits(stale.generate(requests(), GREEDY, Want())) != bits(fresh.generate(requests(), GREEDY, Want()))


def test_a_memory_that_is_not_flushed_is_used_and_a_flushed_one_is_not() -> None:
    old, new = policy(0), policy(1)
    canary = canary_requests(world())
    results = {}
    for name, flush in (("kept", Flush(kda=False, latent=False, logits=False)), ("flushed", Flush())):
        engine = served(old)
        run_canary(engine, canary)
        planned = delivery(new, 1)
        engine.pause()
        for bucket in planned.buckets:
            engine.load(bucket)
        engine.post_load(1, planned.post, planned.placement, planned.execution)
        engine.flush_cache(flush)
        engine.resume()
        results[name] = run_canary(engine, canary)
    assert torch.equal(results["flushed"], run_canary(served(new), canary))
    assert not torch.equal(results["kept"], results["flushed"])


@pytest.mark.parametrize("part", ["kda", "latent", "logits"])
def test_each_part_of_the_memory_matters(part: str) -> None:
    old, new = policy(0), policy(1)
    canary = canary_requests(world())
    engine = served(old)
    run_canary(engine, canary)
    deliver(engine, delivery(new, 1))
    clean = run_canary(engine, canary)
    engine = served(old)
    run_canary(engine, canary)
    planned = delivery(new, 1)
    engine.pause()
    for bucket in planned.buckets:
        engine.load(bucket)
    engine.post_load(1, planned.post, planned.placement, planned.execution)
    engine.flush_cache(Flush(**{part: False}))
    engine.resume()
    assert not torch.equal(run_canary(engine, canary), clean)


def test_weights_are_loaded_only_while_paused_and_tokens_written_only_while_not() -> None:
    engine = served(policy())
    with pytest.raises(EngineRefusedError, match="pause the engine first"):
        engine.load(delivery(policy()).buckets[0])
    engine.pause()
    with pytest.raises(EngineRefusedError, match="resume the engine first"):
        engine.generate(requests(), GREEDY, Want())


def test_a_sleeping_engine_writes_nothing_and_wakes_with_its_weights() -> None:
    engine = served(policy())
    before = bits(engine.generate(requests(), GREEDY, Want()))
    engine.sleep()
    assert engine.is_asleep
    with pytest.raises(EngineRefusedError, match="asleep"):
        engine.generate(requests(), GREEDY, Want())
    with pytest.raises(EngineRefusedError, match="asleep"):
        engine.load(delivery(policy()).buckets[0])
    engine.wake()
    assert bits(engine.generate(requests(), GREEDY, Want())) == before
    with pytest.raises(EngineRefusedError, match="awake"):
        engine.wake()


@pytest.mark.slow
def test_what_an_engine_refuses_is_an_error_in_this_process_and_it_lives_on(client: EngineClient) -> None:
    deliver(client, delivery(policy()))
    client.pause()
    with pytest.raises(EngineRefusedError, match="resume the engine first"):
        client.generate(requests(), GREEDY, Want())
    client.resume()
    assert client.generate(requests(1), GREEDY, Want())[0].tokens


def test_noise_that_no_sync_overwrites_is_named_and_the_engine_goes_back() -> None:
    trainer = policy()
    engine = served(trainer)
    before = bits(engine.generate(requests(), GREEDY, Want()))
    engine.snapshot()
    assert engine.randomise(3) > 100
    assert engine.compare() != ()
    assert bits(engine.generate(requests(), GREEDY, Want())) == before
    engine.snapshot()
    engine.randomise(4)
    deliver(engine, delivery(trainer))
    assert engine.compare() == ()
    engine.snapshot()
    engine.randomise(5)
    deliver(engine, delivery(trainer, post=PostLoad(rebuild=("layers.2.*",))))
    assert engine.compare() == tuple(
        f"derived layers.1.moe.experts.{stack} shard {shard}" for stack in ("w13", "w2") for shard in (0, 1)
    )


def test_experts_are_found_where_the_placement_says() -> None:
    trainer = policy()
    engine = served(trainer)
    state = engine.export_state()
    swapped = Placement(num_shards=2, place=(PLACEMENT.place[1], PLACEMENT.place[0], *PLACEMENT.place[2:]))
    wrong = decode_experts(state.derived, swapped)["layers.1.experts.w2"]
    right = trainer.values()["layers.1.experts.w2"]
    assert torch.equal(wrong[0], right[1]) and torch.equal(wrong[1], right[0]) and torch.equal(wrong[2:], right[2:])


def test_experts_are_dealt_round_robin() -> None:
    assert deal_experts(6, 2).place == (0, 3, 1, 4, 2, 5)
    assert deal_experts(6, 2).experts_of(1) == [1, 3, 5]
    with pytest.raises(ValueError, match="divides the experts"):
        deal_experts(6, 4)


def test_a_replay_in_the_trainer_gives_the_engines_log_probabilities_to_the_bit() -> None:
    trainer = policy()
    written = served(trainer).generate(requests(), Sampling(), Want())
    forced = [
        Request(key=r.key, tokens=r.tokens, max_new=r.max_new, forced=c.tokens)
        for r, c in zip(requests(), written, strict=True)
    ]
    replayed = replay_rollouts(trainer, forced, Sampling(), trainer.declared_execution())
    assert bits(replayed) == bits(written)


@pytest.mark.parametrize(
    "change",
    [
        {"activations": {}},
        {"router": ComputeDtype.BFLOAT16},
        {"state": ComputeDtype.BFLOAT16},
        {"latent": ComputeDtype.BFLOAT16},
        {"dtype": ComputeDtype.BFLOAT16},
    ],
)
def test_every_field_of_an_execution_changes_bits_and_is_replayed_to_the_bit(change: dict[str, object]) -> None:
    trainer = policy()
    other = trainer.declared_execution().model_copy(update=change)
    engine = RolloutEngine(TINY)
    planned = delivery(trainer)
    engine.pause()
    for bucket in planned.buckets:
        engine.load(bucket)
    engine.post_load(0, planned.post, planned.placement, other)
    engine.flush_cache(planned.flush)
    engine.resume()
    canary = canary_requests(world())
    declared = run_canary(served(trainer), canary)
    assert not torch.equal(run_canary(engine, canary), declared)
    assert torch.equal(run_canary(engine, canary), _replayed(trainer, other))


def _replayed(trainer: Policy, execution: EngineExecution) -> torch.Tensor:
    canary = canary_requests(world())
    done = decode(trainer.served(execution), canary, GREEDY, Want(logits=True), PrefixMemory())
    return torch.cat([c.logits_TV for c in done if c.logits_TV is not None]).log_softmax(-1)


@pytest.mark.slow
def test_what_was_begun_is_answered_whatever_is_asked_meanwhile(client: EngineClient) -> None:
    trainer = policy(2)
    here = served(trainer)
    deliver(client, delivery(trainer))
    answer = client.begin(requests(), GREEDY, Want())
    meanwhile = client.generate(requests(2), GREEDY, Want())
    assert bits(answer()) == bits(answer()) == bits(here.generate(requests(), GREEDY, Want()))
    assert bits(meanwhile) == bits(here.generate(requests(2), GREEDY, Want()))
    client.pause()
    refused = client.begin(requests(), GREEDY, Want())
    client.resume()
    with pytest.raises(EngineRefusedError, match="resume the engine"):
        refused()


@pytest.mark.slow
def test_an_engine_that_dies_in_what_was_begun_is_reported_where_its_answer_is_waited_for() -> None:
    engine = EngineClient(TINY, timeout_seconds=60.0)
    deliver(engine, delivery(policy()))
    os.kill(engine.pid, signal.SIGSTOP)
    answer = engine.begin(requests(), GREEDY, Want())
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineDiedError, match="ended during `generate`"):
        answer()
    engine.close()


@pytest.mark.parametrize("sleeps", [False, True])
def test_another_engine_goes_on_with_what_one_held(*, sleeps: bool) -> None:
    engine, other = served(policy()), RolloutEngine(TINY)
    engine.generate(requests(), GREEDY, Want(memory=True))
    if sleeps:
        engine.sleep()
    other.restore(engine.checkpoint(with_memory=True))
    if sleeps:
        engine.wake()
    _assert_equal_states(engine.export_state(), other.export_state())
    other.post_load(0, PostLoad(rebuild=()), PLACEMENT, policy().declared_execution())
    assert other.version == engine.version == 0 and not other.is_asleep
    assert bits(other.generate(requests(), GREEDY, Want())) == bits(engine.generate(requests(), GREEDY, Want()))
    with pytest.raises(EngineRefusedError, match="no weights"):
        RolloutEngine(TINY).checkpoint(with_memory=False)
