"""Optimizers of a repair: AdamW for everything, or Muon for matrices and AdamW for the rest.

Muon (momentum, then Newton-Schulz orthogonalisation) is torch's, which takes single matrices. A matrix here is what
acts as one: an expert of a stack, a head of the Q, K and V projections, or a whole weight; torch's optimizer gets each
as a view of the parameter and steps it in place. Momentum is thereby per head and per expert too. Embeddings, the head
of the model, convolutions and vectors go to AdamW, as in Kimi K3.

Source: Kimi K3 report section 3 (per-head Muon); torch.optim.Muon for the iteration and the scaling of the rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from quantaudit.core.recipe import OptimizerKind, Repair, Trained
from quantaudit.model.config import ModelConfig
from quantaudit.model.lm import LanguageModel

_PER_HEAD = (".q_proj", ".k_proj", ".v_proj", ".q_b_proj", ".kv_b_proj")
_BY_ADAMW = ("embed_tokens", "lm_head", "conv1d", "res_proj")  # the last are vectors that are stored as rows
_ROUTER = ".block_sparse_moe.gate."
_EXPERTS = ".experts."
SCALE = "learned_scale"


@dataclass(slots=True, kw_only=True)
class _Blocks:
    """The matrices of one parameter, which share its memory."""

    parameter: nn.Parameter
    matrices: list[nn.Parameter]

    def hand_on_gradients(self) -> None:
        """Gives every matrix its part of the parameter's gradient."""
        grad = self.parameter.grad
        parts = [None] * len(self.matrices) if grad is None else list(grad.view(len(self.matrices), *self.shape))
        for matrix, part in zip(self.matrices, parts, strict=True):
            matrix.grad = part

    @property
    def shape(self) -> torch.Size:
        return self.matrices[0].shape


@dataclass(slots=True, kw_only=True)
class Optimizers:
    """What steps the parameters of one run; every group knows what its rate is a multiple of."""

    parameters: list[nn.Parameter]
    parts: list[torch.optim.Optimizer]
    blocks: list[_Blocks] = field(default_factory=list)

    def zero_grad(self) -> None:
        """Forgets the gradients of the last step."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self, factor: float) -> None:
        """Takes one step.

        Args:
            factor: What every group's peak rate is multiplied by.
        """
        for block in self.blocks:
            block.hand_on_gradients()
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = group["peak"] * factor
            part.step()

    def state_tensors(self) -> dict[str, Tensor]:
        """Returns all momenta and counters by a name that `load_state_tensors` knows."""
        return {
            f"{number}.{index}.{key}": value
            for number, part in enumerate(self.parts)
            for index, state in part.state_dict()["state"].items()
            for key, value in state.items()
        }

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restores what `state_tensors` returned."""
        for number, part in enumerate(self.parts):
            state: dict[int, dict[str, Tensor]] = {}
            for name, value in tensors.items():
                owner, index, key = name.split(".")
                if int(owner) == number:
                    state.setdefault(int(index), {})[key] = value
            part.load_state_dict({**part.state_dict(), "state": state})


def choose_parameters(model: LanguageModel, trained: Trained) -> dict[str, nn.Parameter]:
    """Freezes what a repair does not train, and returns the rest by name; routers' biases are never trained by it."""
    chosen: dict[str, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        is_chosen = not name.endswith("e_score_correction_bias") and _is_chosen(name, trained)
        parameter.requires_grad_(is_chosen)
        if is_chosen:
            chosen[name] = parameter
    return chosen


def _is_chosen(name: str, trained: Trained) -> bool:
    match trained:
        case Trained.EXPERTS:
            return _EXPERTS in name
        case Trained.ALL_BUT_ROUTERS:
            return _ROUTER not in name
    return True


def build_optimizers(named: dict[str, nn.Parameter], config: ModelConfig, repair: Repair) -> Optimizers:
    """Builds the optimizers of a repair.

    Args:
        named: Parameters to be trained, by their names in the model.
        config: Says how many heads the projections have.
        repair: Says which optimizer, and the rates.
    """
    rate = partial(_peak_rate, repair=repair)
    is_muon = repair.optimizer is OptimizerKind.MUON
    blocks = {
        n: _Blocks(parameter=p, matrices=cut(n, p, config)) for n, p in named.items() if is_muon and _is_matrix(n, p)
    }
    others = {name: p for name, p in named.items() if name not in blocks}
    parts: list[torch.optim.Optimizer] = []
    if blocks:
        groups = [{"params": b.matrices, "peak": rate(name)} for name, b in blocks.items()]
        parts.append(torch.optim.Muon(groups, weight_decay=repair.weight_decay, adjust_lr_fn="match_rms_adamw"))
    if others:
        groups = [
            {"params": [p], "peak": rate(name), "weight_decay": repair.weight_decay if _is_matrix(name, p) else 0.0}
            for name, p in others.items()
        ]
        parts.append(torch.optim.AdamW(groups, repair.learning_rate, (0.9, 0.98)))
    return Optimizers(parameters=list(named.values()), parts=parts, blocks=list(blocks.values()))


def _is_matrix(name: str, parameter: Tensor) -> bool:
    return parameter.ndim > 1 and not name.endswith(SCALE) and not any(part in name for part in _BY_ADAMW)


def _peak_rate(name: str, repair: Repair) -> float:
    if name.endswith(SCALE):
        return repair.scale_rate
    return repair.learning_rate * (1.0 if _EXPERTS in name else repair.other_rate)


def cut(name: str, parameter: nn.Parameter, config: ModelConfig) -> list[nn.Parameter]:
    """Returns the matrices that a parameter consists of, as views: experts, heads, or the whole."""
    values = parameter.detach()
    if values.ndim == 3:
        return [nn.Parameter(matrix) for matrix in values]
    if any(name.removesuffix(".weight").endswith(projection) for projection in _PER_HEAD):
        return [nn.Parameter(head) for head in values.view(_heads_of(name, config), -1, values.shape[-1])]
    return [nn.Parameter(values)]


def _heads_of(name: str, config: ModelConfig) -> int:
    layer = int(name.split(".")[2])
    return config.linear_attn_config.num_heads if config.is_kda_layer(layer) else config.num_attention_heads


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float) -> float:
    """Scales all gradients so that their joint norm is at most `limit`; returns the norm before."""
    return float(torch.nn.utils.clip_grad_norm_(parameters, limit))


def factor_at(step: int, repair: Repair) -> float:
    """Returns the share of the peak rate at the 0-based step: linear warm-up, then a linear fall to zero."""
    warm = min(1.0, (step + 1) / repair.warmup_steps)
    return warm * min(1.0, (repair.steps - step) / max(1, repair.steps - repair.warmup_steps))


def named_blocks(named: dict[str, nn.Parameter], config: ModelConfig) -> Iterator[tuple[str, int]]:
    """Yields, for every parameter that Muon would take, its name and the number of matrices it is cut into."""
    for name, parameter in named.items():
        if _is_matrix(name, parameter):
            yield name, len(cut(name, parameter, config))
