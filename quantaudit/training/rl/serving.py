"""A model as it is served: decoded expert weights, dense parameters, and an execution that rounds where it says.

The engine builds it from its derived layouts, the trainer from its own weights, to replay what the engine declares. The
code is one and the processes are two: equal weights under equal executions give equal bits. Whoever serves one set of
weights after the other builds the modules once and puts in the weights.

Legend: N rows, I in, O out, E experts, D hidden, L layers with routers, K experts a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from quantaudit.core.recipe import ComputeDtype
from quantaudit.core.scheme import Scheme
from quantaudit.core.site import Point, Site
from quantaudit.engines.quantized import quantize_rows
from quantaudit.engines.realization import module_name, replace_module
from quantaudit.model.cache import Cache
from quantaudit.model.config import ModelConfig
from quantaudit.model.linear import GroupedLinear, grouped_matmul
from quantaudit.model.lm import LanguageModel
from quantaudit.model.moe import Router
from quantaudit.model.segments import Segments
from quantaudit.numerics import get_scheme
from quantaudit.training.rl.execution import EngineExecution
from quantaudit.training.rl.memory import RoutingRecord

_DTYPES = {ComputeDtype.FLOAT32: torch.float32, ComputeDtype.BFLOAT16: torch.bfloat16}


class InputRounding:
    """Quantizes the rows that experts read; once for the gate and the up projection, which read the same ones."""

    def __init__(self, scheme: Scheme | None) -> None:
        self._scheme = scheme
        self._rows: Tensor | None = None
        self._rounded: Tensor | None = None

    def __call__(self, x_NI: Tensor) -> Tensor:
        """Returns the rows as the scheme represents them."""
        if self._rounded is None or x_NI is not self._rows:
            self._rows, self._rounded = x_NI, quantize_rows(x_NI, self._scheme)
        return self._rounded


class ServedExperts(nn.Module):
    """A `GroupedLinear` over decoded values, whose input is quantized first if the execution says so."""

    def __init__(self, values_EOI: Tensor, rounding: InputRounding) -> None:
        super().__init__()
        self.values = values_EOI
        self.rounding = rounding

    def forward(self, x_NI: Tensor, counts_E: list[int]) -> Tensor:
        """Returns `[N, O]` in the dtype of `x_NI`; rows are sorted by expert."""
        return grouped_matmul(self.rounding(x_NI), self.values, counts_E)


class ServedRouter(nn.Module):
    """A `Router` whose product is taken in a narrower dtype."""

    def __init__(self, weight_ED: Tensor, bias_E: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = weight_ED
        self.e_score_correction_bias = bias_E
        self.dtype = dtype

    def forward(self, x_ND: Tensor) -> Tensor:
        """Returns `[N, E]` in fp32."""
        return nn.functional.linear(x_ND.to(self.dtype), self.weight.to(self.dtype)).float()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Served:
    """A model with the way it is run."""

    model: LanguageModel
    execution: EngineExecution


class ReadOut(NamedTuple):
    """What one pass through the model gives: logits after the last token of each sequence, and routing of all."""

    logits_BV: Tensor
    routing: RoutingRecord | None


def build_served(
    config: ModelConfig, experts: Mapping[str, Tensor], dense: Mapping[str, Tensor], execution: EngineExecution
) -> Served:
    """Builds the model.

    Args:
        config: Its sizes.
        experts: Values `[E, O, I]` of every expert stack, fp32, by module name.
        dense: Every other parameter, by the model's name, in the dtype that it is stored in.
        execution: How it is run.
    """
    with torch.device("meta"):
        model = LanguageModel(config)
    roundings: dict[tuple[str, str | None], InputRounding] = {}
    for path, module in list(model.named_modules()):
        if isinstance(module, GroupedLinear):
            name = module_name(path)
            layer, scheme = name.rpartition(".")[0], execution.activations.get(name)
            rounding = InputRounding(None if scheme is None else get_scheme(scheme))
            rounding = roundings.setdefault((layer, scheme), rounding)
            replace_module(model, path, ServedExperts(experts[name], rounding))
    for path, _ in list(model.named_parameters()):
        owner, _, attribute = path.rpartition(".")
        setattr(model.get_submodule(owner), attribute, nn.Parameter(dense[path], requires_grad=False))
    if execution.router is not ComputeDtype.FLOAT32:
        _narrow_routers(model, _DTYPES[execution.router])
    return Served(model=model, execution=execution)


class ServedModels:
    """Serves one set of weights after the other; the last model is no longer good once the next one is built.

    Building modules takes as long as reading a short prompt. They are built anew where the execution changes, and
    otherwise get other weights.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._last: Served | None = None

    def build(self, experts: Mapping[str, Tensor], dense: Mapping[str, Tensor], execution: EngineExecution) -> Served:
        """Returns the model; arguments as in `build_served`."""
        if self._last is None or self._last.execution != execution:
            self._last = build_served(self._config, experts, dense, execution)
            return self._last
        for path, module in self._last.model.named_modules():
            if isinstance(module, ServedExperts):
                module.values = experts[module_name(path)]
        for path, parameter in self._last.model.named_parameters():
            parameter.data = dense[path]
        return self._last


def _narrow_routers(model: LanguageModel, dtype: torch.dtype) -> None:
    for path, module in list(model.named_modules()):
        if isinstance(module, Router):
            replace_module(model, path, ServedRouter(module.weight, module.e_score_correction_bias, dtype))


@torch.inference_mode()
def read_on(served: Served, tokens: list[tuple[int, ...]], cache: Cache, *, with_routing: bool) -> ReadOut:
    """Reads tokens behind what the cache holds; the cache is replaced in place.

    Args:
        served: The model.
        tokens: At least one a sequence.
        cache: Empty, or the memory of as many sequences.
        with_routing: Whether routing is recorded, of all tokens in their order.
    """
    segments = Segments.of(tuple(map(len, tokens)), torch.device("cpu"))
    tokens_N = torch.tensor([t for some in tokens for t in some])
    tap = _ServingTap(served.execution, with_routing=with_routing)
    logits_BV = served.model(
        tokens_N,
        segments,
        cache=cache,
        tap=tap,
        selected_M=segments.last_N(),
        dtype=_DTYPES[served.execution.dtype],
    )
    return ReadOut(logits_BV.float(), tap.routing() if with_routing else None)


class _ServingTap:
    """Rounds what is kept between calls, and records routing."""

    def __init__(self, execution: EngineExecution, *, with_routing: bool) -> None:
        kept = {Point.KDA_STATE: execution.state, Point.LATENT_CACHE: execution.latent}
        self._kept = {point: _DTYPES[dtype] for point, dtype in kept.items() if dtype is not ComputeDtype.FLOAT32}
        self._with_routing = with_routing
        self._ids: list[Tensor] = []
        self._weights: list[Tensor] = []

    def __call__(self, site: Site, value: Tensor) -> Tensor:
        """Returns what the pass goes on with."""
        if site.point in self._kept:
            return value.to(self._kept[site.point]).to(value.dtype)
        if self._with_routing and site.point is Point.TOP_K_IDS:
            self._ids.append(value.to(torch.int16))
        elif self._with_routing and site.point is Point.GATE_WEIGHTS:
            self._weights.append(value.float())
        return value

    def routing(self) -> RoutingRecord:
        """Returns the routing of all tokens that were read."""
        return RoutingRecord(ids_TLK=torch.stack(self._ids, dim=1), weights_TLK=torch.stack(self._weights, dim=1))
