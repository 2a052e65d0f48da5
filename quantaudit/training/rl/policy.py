"""The trainer's side: fp32 masters, and the working weights that every forward uses.

Routed experts are fake-quantized from the bf16 export of their masters; everything else is rounded to the dtype that it
is stored in, as mixed precision does it. So the trainer computes with exactly the weights that it serves, and gradients
pass straight through to the masters.

Legend: E experts, O out, I in, M written tokens, N tokens read, L layers with routers, K experts a token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from quantaudit.checkpoint.unstack import round_to_storage
from quantaudit.core.batch import Sequence as TokenSequence
from quantaudit.core.recipe import ComputeDtype, Recipe
from quantaudit.core.scheme import Scheme
from quantaudit.core.site import Point, Site
from quantaudit.engines.realization import module_name
from quantaudit.engines.stored import quantize_stack
from quantaudit.model.linear import GroupedLinear
from quantaudit.model.lm import LanguageModel
from quantaudit.model.packed import pack
from quantaudit.model.tap import Tap, untapped
from quantaudit.training.fake_quantize import FakeQuantizedGroupedLinear, forget_weights, prepare, straight_through
from quantaudit.training.rl.execution import EngineExecution
from quantaudit.training.rl.faults import Packed
from quantaudit.training.rl.memory import RoutingRecord
from quantaudit.training.rl.samples import Sample
from quantaudit.training.rl.sampling import Sampling, reported_logprobs
from quantaudit.training.rl.serving import Served, build_served
from quantaudit.training.rl.settings import Replay, RlSettings, Trains
from quantaudit.training.rl.sync import QuantizeAt

_DTYPES = {ComputeDtype.FLOAT32: torch.float32, ComputeDtype.BFLOAT16: torch.bfloat16}
_ROUTER, _BIAS, _EXPERTS = ".block_sparse_moe.gate.weight", "e_score_correction_bias", ".experts."


class DivergedError(RuntimeError):
    """Says that a loss or a gradient is not finite."""


class Policy:
    """A model in training.

    Attributes:
        model: Working weights; of the experts, the masters, which are fake-quantized in the forward.
        masters: By parameter name; those of the experts are the model's own parameters.
    """

    def __init__(self, model: LanguageModel, recipe: Recipe, settings: RlSettings) -> None:
        self.model = prepare(model.float(), recipe, estimator=settings.estimator)
        self._settings = settings
        self._dtype = _DTYPES[recipe.execution.dtype]
        self._experts = {
            module_name(path): module
            for path, module in self.model.named_modules()
            if isinstance(module, FakeQuantizedGroupedLinear | GroupedLinear)
        }
        trained = {id(m.weight) for m in self._experts.values() if isinstance(m, FakeQuantizedGroupedLinear)}
        self._working = {name: p for name, p in self.model.named_parameters() if id(p) not in trained}
        self.masters = {
            name: p if id(p) in trained else nn.Parameter(p.detach().clone(), requires_grad=False)
            for name, p in self.model.named_parameters()
        }
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(_learns(name, settings.trains))
        self.optimizer = _build_optimizer(self.masters, settings)
        self._refresh()

    def schemes(self) -> dict[str, Scheme | None]:
        """Returns the weight scheme of every expert stack; `None` where it is not quantized."""
        return {
            name: module.weight_scheme if isinstance(module, FakeQuantizedGroupedLinear) else None
            for name, module in self._experts.items()
        }

    def declared_execution(self) -> EngineExecution:
        """Returns the execution that the trainer imitates."""
        activations = {
            name: module.activation.name
            for name, module in self._experts.items()
            if isinstance(module, FakeQuantizedGroupedLinear) and module.activation is not None
        }
        dtype = ComputeDtype.BFLOAT16 if self._dtype is torch.bfloat16 else ComputeDtype.FLOAT32
        return EngineExecution(dtype=dtype, activations=activations)

    def expert_masters(self) -> dict[str, Tensor]:
        """Returns the masters of all expert stacks, `[E, O, I]` fp32, by module name."""
        owner = {id(parameter): name for name, parameter in self.model.named_parameters()}
        return {name: self.masters[owner[id(module.weight)]].detach() for name, module in self._experts.items()}

    def exported(self) -> dict[str, Tensor]:
        """Returns the masters of all expert stacks as an export holds them: bf16, unless a module says otherwise."""
        return {
            name: m.exported() if isinstance(m, FakeQuantizedGroupedLinear) else m.weight.detach().to(torch.bfloat16)
            for name, m in self._experts.items()
        }

    def values(self) -> dict[str, Tensor]:
        """Returns what the forward multiplies with, `[E, O, I]` fp32, by module name."""
        return {
            name: m.quantized() if isinstance(m, FakeQuantizedGroupedLinear) else m.weight.detach()
            for name, m in self._experts.items()
        }

    def dense(self) -> dict[str, Tensor]:
        """Returns every other parameter in the dtype that it is stored in, by parameter name."""
        stacks = {id(module.weight) for module in self._experts.values()}
        own = {id(p) for p in self.model.parameters()} & stacks
        named = ((name, p.detach()) for name, p in self.model.named_parameters() if id(p) not in own)
        return dict(round_to_storage(named, self.model.config))

    def served(self, execution: EngineExecution) -> Served:
        """Returns the trainer's weights under an engine's execution, in this process."""
        return build_served(self.model.config, self.values(), self.dense(), execution)

    def answer_logprobs(self, samples: Sequence[Sample], sampling: Sampling, replay: Replay) -> Tensor:
        """Returns the log-probabilities of all written tokens, `[M]` fp64, by one forward of the given answers.

        Args:
            samples: At least one; every one has written at least one token.
            sampling: Declares what log-probabilities are of.
            replay: What of the recorded routing is forced.
        """
        sequences = [TokenSequence(tokens=s.tokens, scored_from=len(s.task.prompt)) for s in samples]
        batch = pack(sequences, torch.device("cpu"))
        tap = untapped if replay is Replay.NONE else force_routing(samples, self.model, replay)
        logits_MV = self.model(batch.tokens_N, batch.segments, tap=tap, selected_M=batch.selected_M, dtype=self._dtype)
        return reported_logprobs(logits_MV.double(), sampling, batch.target_M)

    def step(self, rate: float) -> float:
        """Takes an optimizer step with the gradients of the model; returns their norm before it is clipped.

        Raises:
            DivergedError: If the norm is not finite; nothing has changed then.
        """
        for name, working in self._working.items():
            self.masters[name].grad = working.grad
        trained = [p for p in self.masters.values() if p.grad is not None]
        norm = float(nn.utils.clip_grad_norm_(trained, self._settings.clip_norm))
        if not math.isfinite(norm):
            raise DivergedError(f"the norm of the gradient is {norm}")
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        for parameter in (*self.masters.values(), *self._working.values()):
            parameter.grad = None
        self._refresh()
        return norm

    @torch.no_grad()
    def set_masters(self, masters: Mapping[str, Tensor]) -> None:
        """Puts masters in place, and makes the working weights anew."""
        for name, master in self.masters.items():
            master.copy_(masters[name])
        self._refresh()

    @torch.no_grad()
    def _refresh(self) -> None:
        """Makes the working weights of these masters."""
        masters = ((name, self.masters[name]) for name in self._working)
        for name, rounded in round_to_storage(masters, self.model.config):
            self._working[name].copy_(rounded)
        forget_weights(self.model)


def _learns(name: str, trains: Trains) -> bool:
    if name.endswith(_BIAS):
        return False
    match trains:
        case Trains.EXPERTS:
            return _EXPERTS in name
        case Trains.ALL_BUT_ROUTERS:
            return not name.endswith(_ROUTER)
    return True


def _build_optimizer(masters: Mapping[str, nn.Parameter], settings: RlSettings) -> torch.optim.AdamW:
    """Returns AdamW over all masters; those whose gradient is never set stay as they are."""
    return torch.optim.AdamW(list(masters.values()), settings.learning_rate, (0.9, 0.95), settings.adam_eps, 0.0)


def pack_experts(exported: Mapping[str, Tensor], schemes: Mapping[str, Scheme | None], at: QuantizeAt) -> Packed:
    """Returns what is sent of every expert stack: packed codes, or bf16 where the trainer does not quantize it."""
    packed: Packed = {}
    for name, weight in exported.items():
        scheme = schemes[name]
        packed[name] = weight if scheme is None or at is QuantizeAt.ARRIVAL else quantize_stack(weight, scheme)
    return packed


def force_routing(samples: Sequence[Sample], model: LanguageModel, replay: Replay) -> Tap:
    """Returns a tap that routes every token as the engine routed it.

    Forced weights keep the gradient of the trainer's own.
    """
    records = [sample.routing for sample in samples]
    assert all(record is not None for record in records), "routing was not recorded"
    ids_NLK = torch.cat([_reads(r, s).ids_TLK for r, s in zip(records, samples, strict=True)]).long()
    weights_NLK = torch.cat([_reads(r, s).weights_TLK for r, s in zip(records, samples, strict=True)])
    place = {layer: number for number, layer in enumerate(model.config.moe_layers())}

    def tap(site: Site, value: Tensor) -> Tensor:
        if site.point is Point.TOP_K_IDS:
            return ids_NLK[:, place[site.layer]]
        if site.point is Point.GATE_WEIGHTS and replay is Replay.IDS_AND_WEIGHTS:
            forced_NK = weights_NLK[:, place[site.layer]].to(value.dtype)
            return straight_through(value, forced_NK, None)
        return value

    return tap


def _reads(record: RoutingRecord | None, sample: Sample) -> RoutingRecord:
    """Returns the routing of all tokens that a teacher-forced forward reads: all but the last one."""
    assert record is not None
    count = len(sample.tokens) - 1
    assert len(record.ids_TLK) >= count, "a token was written whose reading was not recorded"
    return RoutingRecord(ids_TLK=record.ids_TLK[:count], weights_TLK=record.weights_TLK[:count])
