"""A small loop with everything that a check looks at: random updates, export, sync over shards, post-load, canary.

Trainer, sync and engine are those of `quantaudit simulate rl`. Learning is left out: masters take random steps, so that
a step costs a tenth of a second, and the engine is in this process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from quantaudit.core.recipe import ComputeDtype, Execution, Recipe, Rule
from quantaudit.model.config import LinearAttentionConfig, ModelConfig
from quantaudit.model.initialize import initialize
from quantaudit.model.lm import LanguageModel
from quantaudit.probes.tokenizer import BOS, EOS, PAD, VOCAB_SIZE
from quantaudit.training.checking.canary import Hypothesis
from quantaudit.training.checking.checker import CheckOutcome, StepChecker
from quantaudit.training.checking.gathering import Trainer, gather_sides, trained_weights
from quantaudit.training.checking.injections.points import PlantedFaults
from quantaudit.training.checking.settings import CheckSettings
from quantaudit.training.checking.sides import Sides, decode_shipped
from quantaudit.training.fake_quantize import quantized_layers
from quantaudit.training.rl.decoding import Request, Want
from quantaudit.training.rl.engine import RolloutEngine
from quantaudit.training.rl.placement import deal_experts
from quantaudit.training.rl.policy import Policy, pack_experts
from quantaudit.training.rl.replay import Replayer, run_canary
from quantaudit.training.rl.samples import Sample, Task
from quantaudit.training.rl.sampling import Sampling
from quantaudit.training.rl.settings import Replay, RlSettings
from quantaudit.training.rl.sync import Declared, QuantizeAt, Shipment, deliver, plan_delivery

TINY = ModelConfig(
    vocab_size=VOCAB_SIZE,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=32,
    attn_res_block_size=2,
    num_experts=8,
    num_experts_per_token=2,
    num_shared_experts=1,
    moe_intermediate_size=32,
    routed_expert_hidden_size=64,
    q_lora_rank=16,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=8,
    v_head_dim=8,
    linear_attn_config=LinearAttentionConfig(full_attn_layers=(2, 3), num_heads=2, head_dim=16),
    bos_token_id=BOS,
    eos_token_id=EOS,
    pad_token_id=PAD,
)
_SHARPNESS = 8.0  # logits of a few nats, as a trained model has them
_SHARDS = 2
_BUCKET_BYTES = 1 << 14
_LONGEST, _FORCED = 16, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """One small run.

    Attributes:
        weight: Weight scheme of the experts.
        activation: Scheme of their inputs; `None` for none.
        spared: Pattern over module names that stay unquantized; `None` for none.
        quantize_at: Where weights become codes.
        update: Size of a random step, in units of a weight's own size.
        exports_bf16: Whether masters are rounded to bf16 before they are quantized.
        dtype: Dtype of the computation.
        seed: Of weights, updates and prompts.
        has_canary: Whether the canary runs.
        check: What is checked.
    """

    weight: str = "mxfp4-even"
    activation: str | None = "mxfp8-e4m3-even"
    spared: str | None = None
    quantize_at: QuantizeAt = QuantizeAt.TRAINER
    update: float = 1e-2
    exports_bf16: bool = True
    dtype: ComputeDtype = ComputeDtype.FLOAT32
    seed: int = 0
    has_canary: bool = True
    check: CheckSettings = CheckSettings()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stepped:
    """One step: what the check gave, and what is true.

    Attributes:
        step: 0-based.
        outcome: The check; `None` at a step that is not checked.
        changed: Weights that the engine multiplies with, or holds, otherwise than the trainer.
        bits_differ: Whether a large batch gives other bits than a replay of the declaration on the trainer's weights.
    """

    step: int
    outcome: CheckOutcome | None
    changed: tuple[str, ...]
    bits_differ: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gap:
    """Log-probabilities of written tokens on both sides, nats, and how many tokens every sequence has."""

    serve: Tensor
    train: Tensor
    lengths: tuple[int, ...]

    def by_sequence(self) -> list[list[float]]:
        """Returns |gap| of every token, sequence by sequence."""
        return [part.tolist() for part in (self.serve - self.train).abs().split(list(self.lengths))]


class SmallLoop:
    """One run, step by step."""

    def __init__(self, settings: LoopSettings, faults: PlantedFaults) -> None:
        self._settings = settings
        self._faults = faults
        model = LanguageModel(TINY)
        initialize(model, settings.seed)
        with torch.no_grad():
            model.lm_head.weight.mul_(_SHARPNESS)
        self._policy = Policy(model, _recipe(settings), RlSettings(quantize_at=settings.quantize_at))
        for module in quantized_layers(self._policy.model).values():
            module.exports_bf16 = settings.exports_bf16
            module.forget()
        self._generator = torch.Generator().manual_seed(settings.seed)
        self._declared = Declared(
            placement=deal_experts(TINY.num_experts, _SHARDS), execution=self._policy.declared_execution()
        )
        self.engine = RolloutEngine(TINY)
        self._canary, self._many = (_requests(settings.seed, count) for count in (4, 16))
        self._replayer = Replayer(TINY, self._canary)
        self._checker = StepChecker(settings.check)
        self._step = 0

    def step(self, *, with_truth: bool = True, with_bits: bool = False) -> Stepped:
        """Takes a random update, syncs, checks.

        Args:
            with_truth: Whether it is found out, by brute force and beside the check, which weights are wrong.
            with_bits: The same for the computation, on a large batch.
        """
        step, trainer, shipment = self.sync_only()
        self._replayer.take(self._policy)
        bits = run_canary(self.engine, self._canary) if self._settings.has_canary else None
        is_due = self._checker.is_due(step)
        sides = None
        if is_due or with_truth:
            sides = gather_sides(trainer, shipment, self.engine.export_state(), self._declared.placement)
        outcome = None
        if is_due and sides is not None:
            run = None if bits is None else self._replayer.canary_run(bits, self._declared.execution)
            outcome = self._checker.check(step, sides, canary=run)
        else:
            self._checker.skip(step, trained_weights(trainer), {**shipment.experts, **shipment.dense})
        changed = what_changed(sides) if with_truth and sides is not None else ()
        return Stepped(step=step, outcome=outcome, changed=changed, bits_differ=with_bits and self._bits_differ())

    def sync_only(self) -> tuple[int, Trainer, Shipment]:
        """Takes a random update and syncs."""
        if self._step:
            self._update()
        step, self._step = self._step, self._step + 1
        trainer = self._trainer(step)
        shipment = self._ship(step, trainer)
        deliver(self.engine, plan_delivery(shipment, self._declared, self._faults, step, bucket_bytes=_BUCKET_BYTES))
        return step, trainer, shipment

    def read_gap(self, count: int) -> Gap:
        """Writes answers with the engine and reads their log-probabilities under the trainer."""
        random = Random(f"gap/{self._settings.seed}")
        prompts = [(BOS, *random.choices(range(256), k=random.randint(4, _LONGEST))) for _ in range(count)]
        keys = [f"{self._step}/{n}" for n in range(count)]
        requests = [Request(key=k, tokens=p, max_new=_FORCED) for k, p in zip(keys, prompts, strict=True)]
        written = self.engine.generate(requests, Sampling(), Want())
        samples = [
            Sample(
                key=key,
                task=Task(group=key, family="random", prompt=prompt, answer=""),
                written=one.tokens,
                logprobs=one.logprobs,
            )
            for key, prompt, one in zip(keys, prompts, written, strict=True)
        ]
        with torch.no_grad():
            train = self._policy.answer_logprobs(samples, Sampling(), Replay.NONE)
        serve = torch.tensor([p for one in written for p in one.logprobs], dtype=torch.float64)
        return Gap(serve=serve, train=train.double(), lengths=tuple(len(one.tokens) for one in written))

    @torch.no_grad()
    def _update(self) -> None:
        """Adds noise to all masters but the routers' biases."""
        masters = {}
        for name, master in self._policy.masters.items():
            noise = torch.randn(master.shape, generator=self._generator) * master.std(correction=0)
            masters[name] = master.detach() if name.endswith("_bias") else master + self._settings.update * noise
        self._policy.set_masters(masters)

    def _trainer(self, step: int) -> Trainer:
        policy = self._policy
        return Trainer(
            values=policy.values(),
            schemes=policy.schemes(),
            exported=policy.exported() if self._settings.exports_bf16 else _copies(policy.expert_masters()),
            masters=_copies(policy.expert_masters()),
            dense={name: value.clone() for name, value in policy.dense().items()},
            version=step,
        )

    def _ship(self, step: int, trainer: Trainer) -> Shipment:
        at = self._settings.quantize_at
        exported = self._faults.masters(step, trainer.exported, trainer.masters)
        schemes = self._faults.layer_set(step, trainer.schemes)
        packed = pack_experts(exported, schemes, at)
        arriving = {n: s for n, s in schemes.items() if s is not None} if at is QuantizeAt.ARRIVAL else {}
        if at is QuantizeAt.TRAINER:
            packed = self._faults.export(step, packed, exported)
        return Shipment(version=step, experts=packed, arriving=arriving, dense=trainer.dense)

    def _bits_differ(self) -> bool:
        """Compares a batch that the check does not know with its replay."""
        replayer = Replayer(TINY, self._many)
        replayer.take(self._policy)
        replayed = replayer.replay(Hypothesis(execution=self._declared.execution))
        assert replayed is not None
        return not torch.equal(run_canary(self.engine, self._many).view(torch.int32), replayed.view(torch.int32))


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns copies: masters are changed in place by the next update, and this engine is in the same process."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def what_changed(sides: Sides) -> tuple[str, ...]:
    """Returns the weights that the engine multiplies with, or holds, otherwise than the trainer: all, one by one."""
    changed = []
    for name, trained in sides.trainer.items():
        served = sides.derived if trained.is_stack else sides.loaded
        assert served is not None
        values = decode_shipped(served[name])
        if values.shape != trained.values.shape or not bool((values == trained.values).all()):
            changed.append(name)
    return tuple(changed)


def _recipe(settings: LoopSettings) -> Recipe:
    execution = Execution(dtype=settings.dtype)
    rule = Rule(match="layers.*.experts.*", weight=settings.weight, activation=settings.activation)
    if settings.spared is None:
        return Recipe(name="small", execution=execution, rules=(rule,))
    names = [f"layers.{layer}.experts.{role}" for layer in TINY.moe_layers() for role in ("w1", "w2", "w3")]
    kept = [name for name in names if name != settings.spared]
    return Recipe(
        name="small", execution=execution, rules=tuple(rule.model_copy(update={"match": name}) for name in kept)
    )


def _requests(seed: int, count: int) -> list[Request]:
    """Returns random prompts with random forced answers."""
    random = Random(f"canary/{seed}/{count}")
    drawn: list[Sequence[int]] = [random.choices(range(256), k=random.randint(4, _LONGEST)) for _ in range(count)]
    return [
        Request(key=str(n), tokens=(BOS, *tokens), max_new=_FORCED, forced=tuple(random.choices(range(256), k=_FORCED)))
        for n, tokens in enumerate(drawn)
    ]
