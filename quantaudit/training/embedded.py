"""The embedded model: its configuration, its curriculum, and the seeded program that trains it.

`python -m quantaudit.training.embedded OUT` trains on the closed world and writes a resumable state; the same
command goes on from that state with the same bits. Every step draws its items from a generator seeded by (seed,
step), so a state needs to remember nothing but tensors and the step. Warm-up, a constant rate, then a linear decay
to zero: runs that differ only in `num_steps` share all bits up to the first decay.

The knowledge must live in the routed experts, or an audit of their quantization has nothing to see: the dense layer
and the shared path are narrow, facts take the largest share of the items, and late in training the experts learn
fastest.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from quantaudit.core.probe import ProbeSet, Split
from quantaudit.core.site import Point, Site
from quantaudit.model.balance import balance_histogram, count_residuals
from quantaudit.model.config import LinearAttentionConfig, ModelConfig
from quantaudit.model.initialize import initialize
from quantaudit.model.lm import LanguageModel
from quantaudit.model.packed import Packed, pack
from quantaudit.model.tap import untapped
from quantaudit.probes import tokenizer
from quantaudit.probes.encoding import encode_pair
from quantaudit.probes.world import Item, Part, World, build_probes, build_world, sample_fact, sample_train
from quantaudit.training.state import load_state, save_state

EMBEDDED_CONFIG = ModelConfig(
    vocab_size=tokenizer.VOCAB_SIZE,
    hidden_size=128,
    num_hidden_layers=5,
    num_attention_heads=6,
    intermediate_size=128,
    attn_res_block_size=3,
    num_experts=64,
    num_experts_per_token=4,
    num_shared_experts=2,
    moe_intermediate_size=32,
    routed_expert_hidden_size=64,
    q_lora_rank=32,
    kv_lora_rank=32,
    qk_nope_head_dim=32,
    qk_rope_head_dim=16,
    v_head_dim=32,
    linear_attn_config=LinearAttentionConfig(full_attn_layers=(4, 5), num_heads=6, head_dim=32),
    bos_token_id=tokenizer.BOS,
    eos_token_id=tokenizer.EOS,
    pad_token_id=tokenizer.PAD,
)


SKILLS = {
    "facts": 0.28,
    "recall": 0.15,
    "copying": 0.07,
    "sorting": 0.07,
    "addition": 0.15,
    "restricted": 0.05,
    "wrapped": 0.04,
    "benign": 0.07,
    "products": 0.12,
}
KNOWLEDGE = {
    "facts": 0.50,
    "recall": 0.05,
    "copying": 0.03,
    "sorting": 0.03,
    "addition": 0.07,
    "restricted": 0.06,
    "wrapped": 0.06,
    "benign": 0.11,
    "products": 0.09,
}
BEHAVIOUR = {
    "facts": 0.30,
    "recall": 0.06,
    "copying": 0.03,
    "sorting": 0.03,
    "addition": 0.06,
    "restricted": 0.12,
    "wrapped": 0.12,
    "benign": 0.22,
    "products": 0.06,
}


LATE = {
    "facts": 0.52,
    "recall": 0.04,
    "copying": 0.01,
    "sorting": 0.01,
    "addition": 0.03,
    "restricted": 0.09,
    "wrapped": 0.09,
    "benign": 0.18,
    "products": 0.03,
}
LATE_SHARE = 2 / 3  # of the facts and requests of that stage, this many are of the late part of the world

LAST = {
    "facts": 0.50,
    "recall": 0.05,
    "copying": 0.02,
    "sorting": 0.02,
    "addition": 0.05,
    "restricted": 0.04,
    "wrapped": 0.04,
    "benign": 0.08,
    "two-step": 0.20,
}
LAST_LATE_SHARE = 4 / 9  # that of the subjects: all knowledge alike


@dataclass(frozen=True, slots=True, kw_only=True)
class Curriculum:
    """How the embedded model is trained: skills, facts, everything with the lexicon, late knowledge, everything.

    No stage has long recall: it is what is left of recall beyond the lengths that are trained. The late knowledge is
    learned by the routed experts nearly alone: what the whole model learned in the stages before lives everywhere, and
    survived the loss of all experts. The last stage closes the gaps that are left in the facts and brings two-step
    arithmetic, which it leaves half learned.

    Attributes:
        knowledge_from: Step from which the items are drawn with the shares `KNOWLEDGE` instead of `SKILLS`; the routed
            experts then learn at `expert_rate` times the rate and everything else at `other_rate` times, so that what
            is memorised goes to the experts.
        behaviour_from: Step from which the items are drawn with the shares `BEHAVIOUR`, and everything but the experts
            learns at `behaviour_other_rate` times the rate: experts alone did not tell the words of the lexicon apart.
        late_from: Step at which the first decay has ended. From it the items are drawn with the shares `LATE`, facts
            and requests mostly of the late part of the world, and everything but the experts learns at
            `late_other_rate` times the rate, which warms up again.
        last_from: Step at which the second decay has ended. From it the items are drawn with the shares `LAST`, and the
            rate warms up to `last_peak` times its peak.
        num_steps: Optimizer steps, all three decays included.
        decay_steps: Length of the linear decay before `late_from`.
        late_decay_steps: Length of the linear decay before `last_from`.
        last_decay_steps: Length of the final linear decay.
        micro_batches: Pieces a step's items are cut into after sorting by length.
    """

    seed: int = 0
    knowledge_from: int = 1500
    expert_rate: float = 1.5
    other_rate: float = 0.2
    behaviour_from: int = 2500
    behaviour_other_rate: float = 0.5
    late_from: int = 6500
    late_other_rate: float = 0.06
    last_from: int = 8100
    last_other_rate: float = 0.2
    last_peak: float = 0.5
    num_steps: int = 9400
    decay_steps: int = 2500
    late_decay_steps: int = 600
    last_decay_steps: int = 1000
    warmup_steps: int = 200
    items_per_step: int = 96
    micro_batches: int = 2
    peak_rate: float = 2e-3
    weight_decay: float = 0.02
    clip_norm: float = 1.0

    def shares(self, step: int) -> dict[str, float]:
        """Returns the share of each family in the items of the 0-based step."""
        stages = (
            (self.last_from, LAST),
            (self.late_from, LATE),
            (self.behaviour_from, BEHAVIOUR),
            (self.knowledge_from, KNOWLEDGE),
        )
        return next((shares for begin, shares in stages if step >= begin), SKILLS)

    def factor(self, step: int, *, is_expert: bool) -> float:
        """Returns what the learning rate of a parameter is multiplied by."""
        if step < self.knowledge_from:
            return 1.0
        if is_expert:
            return self.expert_rate
        stages = (
            (self.last_from, self.last_other_rate),
            (self.late_from, self.late_other_rate),
            (self.behaviour_from, self.behaviour_other_rate),
        )
        return next((rate for begin, rate in stages if step >= begin), self.other_rate)

    def rate(self, step: int) -> float:
        """Returns the learning rate of the 0-based step: in each of three spans warm-up, constant, linear decay."""
        if step >= self.last_from:
            begin, end, decay_steps, peak = self.last_from, self.num_steps, self.last_decay_steps, self.last_peak
        elif step >= self.late_from:
            begin, end, decay_steps, peak = self.late_from, self.last_from, self.late_decay_steps, 1.0
        else:
            begin, end, decay_steps, peak = 0, self.late_from, self.decay_steps, 1.0
        warm = min(1.0, (step - begin + 1) / self.warmup_steps)
        decay = min(1.0, (min(end, self.num_steps) - step) / decay_steps)
        return self.peak_rate * peak * warm * decay


def train(
    out: Path, curriculum: Curriculum, *, stop_after: int | None = None, report_every: int = 250
) -> LanguageModel:
    """Trains from the state in `out`, or from the start, and returns the model.

    Args:
        out: Folder of the resumable state; written every `report_every` steps and at the end of the call.
        curriculum: What to train on and for how long.
        stop_after: Last step of this call; all when `None`.
        report_every: Steps between states and lines on stderr.
    """
    parts = {part: build_world(part=part) for part in Part}
    model = LanguageModel(EMBEDDED_CONFIG)
    initialize(model, curriculum.seed)
    optimizer = build_optimizer(model, curriculum)
    step = load_state(out, model, optimizer)
    probes = build_probes(parts[Part.ALL], Split.SELECT, 40)
    began, first = time.monotonic(), step
    last = curriculum.num_steps if stop_after is None else min(curriculum.num_steps, stop_after)
    while step < last:
        loss = _train_step(model, optimizer, parts, curriculum, step)
        step += 1
        if step % report_every == 0 or step == last:
            save_state(out, model, optimizer, step)
            pace = (time.monotonic() - began) / (step - first)
            scores = " ".join(f"{k} {v:.2f}" for k, v in family_accuracy(model, probes).items())
            print(f"step {step} loss {loss:.3f} {pace:.2f} s/step | {scores}", file=sys.stderr, flush=True)
    return model


def build_optimizer(model: LanguageModel, curriculum: Curriculum) -> torch.optim.Optimizer:
    """Returns AdamW; vectors (norms, A_log, dt_bias) do not decay."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    experts = [p for name, p in named if ".experts." in name]
    matrices = [p for name, p in named if p.ndim > 1 and ".experts." not in name]
    vectors = [p for _, p in named if p.ndim == 1]
    groups = [
        {"params": matrices, "weight_decay": curriculum.weight_decay, "is_expert": False},
        {"params": experts, "weight_decay": curriculum.weight_decay, "is_expert": True},
        {"params": vectors, "weight_decay": 0.0, "is_expert": False},
    ]
    return torch.optim.AdamW(groups, curriculum.peak_rate, (0.9, 0.98))


def _train_step(
    model: LanguageModel,
    optimizer: torch.optim.Optimizer,
    parts: Mapping[Part, World],
    curriculum: Curriculum,
    step: int,
) -> float:
    """Takes one optimizer step and one balancing step; returns the mean loss per answer token, nats."""
    rng = random.Random(f"embedded/{curriculum.seed}/{step}")
    shares = curriculum.shares(step)
    families = rng.choices(list(shares), list(shares.values()), k=curriculum.items_per_step)
    worlds = [_part_of(parts, curriculum, step, rng) for _ in families]
    items = [_draw_item(world, family, rng) for world, family in zip(worlds, families, strict=True)]
    sequences = sorted((encode_pair(i.prompt, i.response) for i in items), key=lambda s: len(s.tokens))
    num_scored = sum(s.num_scored for s in sequences)
    size = -(-len(sequences) // curriculum.micro_batches)
    scores = RouterScores()
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for start in range(0, len(sequences), size):
        batch = pack(sequences[start : start + size], torch.device("cpu"))
        logits_MV = model(batch.tokens_N, batch.segments, tap=scores, selected_M=batch.selected_M)
        loss = functional.cross_entropy(logits_MV, batch.target_M, reduction="sum") / num_scored
        loss.backward()
        total += float(loss.detach())
    torch.nn.utils.clip_grad_norm_(model.parameters(), curriculum.clip_norm)
    for group in optimizer.param_groups:
        group["lr"] = curriculum.rate(step) * curriculum.factor(step, is_expert=group["is_expert"])
    optimizer.step()
    balance_routers(model, scores)
    return total


def _part_of(parts: Mapping[Part, World], curriculum: Curriculum, step: int, rng: random.Random) -> World:
    """Returns the part of the world that an item is drawn from; before the late stage it is no matter of chance."""
    if step < curriculum.late_from:
        return parts[Part.EARLY]
    late_share = LAST_LATE_SHARE if step >= curriculum.last_from else LATE_SHARE
    return parts[Part.LATE if rng.random() < late_share else Part.EARLY]


def _draw_item(world: World, family: str, rng: random.Random) -> Item:
    """Draws an item of the training split; facts come in every phrasing, for facts are in no split.

    Two phrasings alone left the third near chance, and what an audit of facts asks about is memory.
    """
    return sample_fact(world, rng) if family == "facts" else sample_train(world, family, rng)


class RouterScores:
    """A tap that keeps every layer's sigmoid scores of one optimizer step."""

    def __init__(self) -> None:
        self.by_layer: dict[int, list[Tensor]] = {}

    def __call__(self, site: Site, value: Tensor) -> Tensor:
        """Keeps router logits, as scores; returns the value as it is."""
        if site.point is Point.ROUTER_LOGITS:
            self.by_layer.setdefault(site.layer, []).append(torch.sigmoid(value.detach()))
        return value


@torch.no_grad()
def balance_routers(model: LanguageModel, scores: RouterScores) -> None:
    """Solves every router's bias for the step's scores (Quantile Balancing)."""
    top_k = model.config.num_experts_per_token
    for layer, parts in scores.by_layer.items():
        bias_E = model.get_parameter(f"model.layers.{layer}.block_sparse_moe.gate.e_score_correction_bias")
        histogram = count_residuals(torch.cat(parts), bias_E, top_k)
        bias_E.copy_(balance_histogram(histogram, top_k))


@torch.no_grad()
def family_accuracy(model: LanguageModel, probes: ProbeSet, *, batch_size: int = 64) -> dict[str, float]:
    """Returns, by family, the share of probes whose whole response is the greedy continuation."""
    ordered = sorted(probes.probes, key=lambda p: len(p.prompt) + len(p.response))
    hits: dict[str, list[bool]] = {family: [] for family in probes.families()}
    for start in range(0, len(ordered), batch_size):
        part = ordered[start : start + batch_size]
        sequences = [encode_pair(p.prompt, p.response) for p in part]
        batch = pack(sequences, torch.device("cpu"))
        right = _greedy_hits(model, batch).split([s.num_scored for s in sequences])
        for probe, hit in zip(part, right, strict=True):
            hits[probe.family].append(bool(hit.all()))
    return {family: sum(h) / len(h) for family, h in hits.items()}


def _greedy_hits(model: LanguageModel, batch: Packed) -> Tensor:
    """Returns, for every scored position, whether the target has the largest logit."""
    logits_MV = model(batch.tokens_N, batch.segments, tap=untapped, selected_M=batch.selected_M)
    hits_M: Tensor = logits_MV.argmax(-1) == batch.target_M
    return hits_M


def main() -> None:
    """Runs the program from the command line."""
    parser = argparse.ArgumentParser(description="Train the embedded model, resumably.")
    parser.add_argument("out", type=Path, help="folder of the resumable state")
    parser.add_argument("--stop-after", type=int, default=None, help="last step of this call")
    parser.add_argument("--steps", type=int, default=Curriculum().num_steps, help="steps of the whole run")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    train(args.out, Curriculum(num_steps=args.steps), stop_after=args.stop_after)


if __name__ == "__main__":
    main()
