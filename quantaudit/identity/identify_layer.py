"""The mismatch search for one layer: its experts stacked on both sides, and schemes that the trainer may have meant.

Shape suffixes: E experts, R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from quantaudit.core.comparison import DifferingCounts
from quantaudit.core.identification import Standing, TensorIdentification, describe_rule
from quantaudit.core.scheme import ExponentScale, Scheme, Tie
from quantaudit.identity.diagnose import Diagnosed, diagnose_apart, find_latent
from quantaudit.identity.histogram import judge_codes, read_codes
from quantaudit.identity.identify_tensor import Both, Described, identify_tensor
from quantaudit.identity.layer_pair import Pair
from quantaudit.identity.layouts.logical import LogicalTensor
from quantaudit.identity.layouts.stored import StoredMatrix
from quantaudit.identity.mismatches.protocol import CONVINCING, Projection
from quantaudit.identity.search import fit_scales
from quantaudit.identity.search_sample import read_served
from quantaudit.identity.stored_weights import read_weight
from quantaudit.numerics.catalogue import bundled_schemes, get_scheme
from quantaudit.numerics.reference import INPUT_DTYPES

MOST_VALUES = 1 << 26  # of a layer, at four bytes and some copies; beyond it only the first experts are looked at
_MOST_GUESSES = 6
_MOST_LOOKED_AT = 8  # matrices of a tensor whose scheme is looked for in other sources
_USUAL = ("mxfp4-even", "mxfp4-rceil", "mxfp4-floor", "int4-g32-div7", "int4-g32-div7.5", "fp8-block128")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """One logical tensor on both sides.

    Attributes:
        served: What is served.
        master: Its master.
        earlier: Masters before the last update, newest first.
    """

    served: LogicalTensor
    master: LogicalTensor
    earlier: tuple[LogicalTensor, ...] = ()


def diagnose_layer(
    sides: Mapping[Projection, Sides], likely: Iterable[Scheme], near: Iterable[Scheme] = ()
) -> tuple[Diagnosed | None, Mapping[Projection, Pair]]:
    """Searches the mismatches of a layer.

    Args:
        sides: Its projections, or a single tensor.
        likely: Schemes that give nearly all of a tensor here, or all of one elsewhere.
        near: Schemes that the search came nearest with here.

    Returns:
        What was found, and the weights it was found in.
    """
    pairs = {name: read_pair(both, len(sides)) for name, both in sides.items()}
    return diagnose_apart(pairs, _guess(sides, likely, near)), pairs


def read_pair(both: Sides, num_tensors: int) -> Pair:
    """Reads both sides of a tensor: stacked experts, or a matrix."""
    first = next(iter(both.master.matrices.values()))
    most = max(1, MOST_VALUES // num_tensors // max(1, _numel(first.shape)))
    numbers = [n for n in both.master.matrices if n in both.served.matrices][:most]
    master = _stack(both.master, numbers)
    served = read_weight(both.served, numbers)
    return Pair(
        master=master if master.dtype in INPUT_DTYPES else master.float(),
        served=served.values,
        stored=served.quantized,
        slack=served.slack,
        earlier=tuple(_stack(tensor, numbers) for tensor in both.earlier if all(n in tensor.matrices for n in numbers)),
    )


def apply_diagnosis(tensor: TensorIdentification, diagnosed: Diagnosed) -> TensorIdentification:
    """Returns what is known of a tensor with the mismatch that touches it, counted over all that it touches.

    What is not convincing explains nothing: it is kept as what comes next, and the tensor stands as it did.
    """
    part = diagnosed.of(_projection(tensor.name, diagnosed))
    if part is None:
        return tensor
    if not part.is_convincing:
        return tensor.model_copy(update={"runner_up": part.found})
    return _explained(tensor, part)


def _projection(name: str, diagnosed: Diagnosed) -> Projection:
    """Returns which projection of a layer a tensor is, by the end of its logical name."""
    last = name.rpartition(".")[2]
    is_alone = last not in list(Projection) or Projection.WHOLE in diagnosed.projections
    return Projection.WHOLE if is_alone else Projection(last)


def _explained(tensor: TensorIdentification, diagnosed: Diagnosed) -> TensorIdentification:
    standing = tensor.standing
    if diagnosed.num_left == 0:
        standing = Standing.MISMATCH
    elif diagnosed.found.explains >= CONVINCING:
        standing = Standing.PARTLY
    return tensor.model_copy(
        update={
            "standing": standing,
            "scheme": diagnosed.scheme.name,
            "rule": describe_rule(diagnosed.scheme),
            "alternatives": () if diagnosed.scheme.name != tensor.scheme else tensor.alternatives,
            "explains": 1.0 - diagnosed.num_left / diagnosed.num_values,
            "differing": DifferingCounts(values=diagnosed.num_left),
            "note": "" if standing is Standing.MISMATCH else tensor.note,
            "mismatch": diagnosed.found,
            "runner_up": diagnosed.runner_up,
        }
    )


def name_latent(sides: Mapping[Projection, Sides], scheme: Scheme) -> tuple[str, ...]:
    """Names the mismatches that would change no value of a layer."""
    return find_latent({name: read_pair(both, len(sides)) for name, both in sides.items()}, scheme)


def _guess(sides: Mapping[Projection, Sides], likely: Iterable[Scheme], near: Iterable[Scheme]) -> list[Scheme]:
    """Lists schemes that the trainer may have meant, the likeliest first."""
    guesses = {scheme.name: scheme for scheme in likely}
    both = next(iter(sides.values()))
    number = next(iter(both.served.matrices))
    stored, master = both.served.matrices[number].read(), both.master.matrices[number].read()
    if not guesses:
        guesses = {scheme.name: scheme for scheme in _from_other_sources(both)}
    guesses |= {scheme.name: scheme for scheme in near if scheme.name not in guesses}
    names = list(_USUAL) if stored.packing is None else _names_like(stored, master)
    guesses |= {name: get_scheme(name) for name in names if name not in guesses}
    return list(guesses.values())[:_MOST_GUESSES]


def _from_other_sources(both: Sides) -> Iterator[Scheme]:
    """Yields schemes that give a tensor exactly from earlier masters, or from its masters in another dtype."""
    numbers = list(both.served.matrices)[:_MOST_LOOKED_AT]
    is_wide = all(both.master.matrices[number].read().dtype == torch.float32 for number in numbers)
    known = [tensor for tensor in both.earlier if all(number in tensor.matrices for number in numbers)]
    sources: list[tuple[LogicalTensor, torch.dtype | None]] = [(tensor, None) for tensor in known]
    sources += [(both.master, dtype) for dtype in (torch.bfloat16, torch.float16) if is_wide]
    for tensor, dtype in sources:
        readers = {number: partial(_read_from, tensor, dtype, both.served, number) for number in numbers}
        if any(tensor.matrices[number].shape != both.served.matrices[number].shape for number in numbers):
            continue
        found = identify_tensor(Described(name="", shape=tensor.matrices[numbers[0]].shape, storage=""), readers)
        if found.tensor.standing is Standing.EXPLAINED and found.scheme is not None:
            yield found.scheme


def _read_from(source: LogicalTensor, dtype: torch.dtype | None, served: LogicalTensor, number: int) -> Both:
    values = _decoded(source.matrices[number].read())
    return Both(values if dtype is None else values.to(dtype).float(), read_served(served.matrices[number].read()))


def _names_like(stored: StoredMatrix, master: StoredMatrix) -> list[str]:
    """Lists bundled schemes of the format and groups of a packed matrix: usual ties first, then whose scales fit."""
    served = read_served(stored)
    alike = [s for s in bundled_schemes() if s.element == served.element and s.granularity == served.granularity]
    likely = judge_codes(read_codes(served))[1]
    fitting = [base.scale for base in fit_scales(_decoded(master), served)] if master.shape == stored.shape else []
    alike.sort(key=lambda s: (s.tie is not Tie.EVEN, s.scale not in fitting, _rule_name(s) != likely))
    return [scheme.name for scheme in alike]


def _rule_name(scheme: Scheme) -> str:
    rule = scheme.scale
    return rule.rounding.value if isinstance(rule, ExponentScale) else f"absmax / {rule.divisor:g}"


def _stack(tensor: LogicalTensor, numbers: list[int]) -> Tensor:
    matrices = [_decoded(tensor.matrices[number].read()) for number in numbers]
    return torch.stack(matrices) if tensor.is_stack else matrices[0]


def _decoded(stored: StoredMatrix) -> Tensor:
    return stored.values(slice(0, stored.shape[0]), stored.dtype or torch.float32)


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
