"""Names the fault between a trainer and a server where no scheme alone explains what is served.

The trainer's side is made from the masters by a few schemes that it may have meant: those that the search came nearest
with, the one that the codes point to, and the catalogue's of the same format. For each of them every structural
mismatch says what it accounts for. The answer is the scheme and mismatch that leave the fewest values unexplained.

Shape suffixes: E experts, R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from quantaudit.core.identification import NamedMismatch
from quantaudit.core.scheme import Scheme
from quantaudit.identity.mismatches.protocol import Finding, Layer, Projection, Weight
from quantaudit.identity.mismatches.registry import MISMATCHES, is_latent, search_mismatches
from quantaudit.identity.mismatches.weights import quantize_weight
from quantaudit.identity.search_space import can_group


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pair:
    """One weight on both sides.

    Attributes:
        master: [E, R, C] or [R, C], fp32 or bf16.
        served: What the server computes with, decoded; the same shape, or another where it was transposed.
        earlier: Masters before the last update, newest first, as many as are known.
    """

    master: Tensor
    served: Tensor
    earlier: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Diagnosed:
    """A scheme and the mismatch that turns what it gives into what is served.

    Attributes:
        scheme: What the trainer's side is quantized by.
        found: The mismatch that accounts for most.
        runner_up: The one that accounts for most otherwise, by the same scheme.
        experts: Experts that the mismatch touches, by projection.
        num_left: Values of the layer that scheme and mismatch together do not give.
        num_values: Values of the layer.
    """

    scheme: Scheme
    found: NamedMismatch
    runner_up: NamedMismatch | None
    experts: Mapping[Projection, tuple[int, ...]]
    num_left: int
    num_values: int


def diagnose(pairs: Mapping[Projection, Pair], schemes: Iterable[Scheme]) -> Diagnosed | None:
    """Returns what explains a layer best; `None` if no mismatch accounts for anything.

    Args:
        pairs: The projections of a layer, or a single tensor.
        schemes: Schemes that the trainer may have meant, the likeliest first.
    """
    served: Layer = {name: Weight(values=pair.served) for name, pair in pairs.items()}
    best: Diagnosed | None = None
    for scheme in schemes:
        if not all(can_group(_matrix(pair.master), scheme.granularity) for pair in pairs.values()):
            continue
        findings = search_mismatches(train_layer(pairs, scheme), served)
        if findings and (best is None or findings[0].num_left < best.num_left):
            best = _diagnosed(scheme, findings, sum(pair.served.numel() for pair in pairs.values()))
        if best is not None and best.num_left == 0:
            break
    return best


def train_layer(pairs: Mapping[Projection, Pair], scheme: Scheme) -> Layer:
    """Returns the layer as a trainer that quantizes its masters by a scheme holds it."""
    return {
        name: quantize_weight(pair.master, scheme, dtype=pair.served.dtype, earlier=pair.earlier)
        for name, pair in pairs.items()
    }


def find_latent(pairs: Mapping[Projection, Pair], scheme: Scheme) -> tuple[str, ...]:
    """Names the mismatches that would change no value of a layer, so that nobody can see whether they happened."""
    layer = train_layer(pairs, scheme)
    return tuple(mismatch.ABOUT.name for mismatch in MISMATCHES if is_latent(mismatch, layer))


def name_finding(finding: Finding) -> NamedMismatch:
    """Returns a finding as it is reported."""
    return NamedMismatch(
        kind=finding.about.kind.value,
        mismatch=finding.about.name,
        sentence=finding.about.sentence,
        field=finding.about.field,
        train=finding.train,
        serve=finding.serve,
        explains=finding.explains,
    )


def _diagnosed(scheme: Scheme, findings: tuple[Finding, ...], num_values: int) -> Diagnosed:
    return Diagnosed(
        scheme=scheme,
        found=name_finding(findings[0]),
        runner_up=name_finding(findings[1]) if len(findings) > 1 else None,
        experts=findings[0].experts,
        num_left=findings[0].num_left,
        num_values=num_values,
    )


def _matrix(stack: Tensor) -> tuple[int, int]:
    return stack.shape[-2], stack.shape[-1]
