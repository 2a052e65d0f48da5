"""The scale rules that the codes of two packed tensors point to: group maxima, of 4-bit codes as they lie.

Shape suffixes: K groups, B bytes of a group.
"""

from __future__ import annotations

from collections import Counter
from functools import partial, reduce

import torch
from torch import Tensor

from quantaudit.core.comparison import Encoding
from quantaudit.core.format import E2M1, INT4
from quantaudit.core.identification import CodeEvidence, Standing
from quantaudit.core.scheme import Layout
from quantaudit.identity.compare_values import as_groups, can_group
from quantaudit.identity.histogram import judge_codes, weigh
from quantaudit.identity.identify_tensor import Described, read_alone
from quantaudit.identity.layouts.logical import LogicalTensor, MatrixSource
from quantaudit.identity.layouts.stored import Packing, Part, ScaleKind, StoredMatrix
from quantaudit.identity.search_sample import Served, read_served

_MOST_MATRICES = 8  # whose codes are counted
_MOST_MEMBERS = 128  # of a group; longer ones are few
_NUM_MAGNITUDES = 9


def rules_by_codes(a: LogicalTensor, b: LogicalTensor) -> tuple[str, str] | None:
    """Returns the rules that the codes of both sides point to, in words; `None` if they are not known, or the same."""
    judged = [judge_codes(evidence) for tensor in (a, b) if (evidence := _read_codes(tensor)) is not None]
    if len(judged) < len((a, b)) or not all(rule for _, rule, _ in judged) or judged[0][1] == judged[1][1]:
        return None
    train, serve = (
        f"{rule}, {'proved' if standing is Standing.PROVED else 'likely'} by its codes" for standing, rule, _ in judged
    )
    return train, serve


def _read_codes(tensor: LogicalTensor) -> CodeEvidence | None:
    """Returns what the codes of a few matrices show; `None` if they are plain numbers, or no rule leaves a trace."""
    numbers = sorted(tensor.matrices)[:_MOST_MATRICES]
    if any(tensor.matrices[number].encoding in (Encoding.PLAIN, Encoding.NVFP4) for number in numbers):
        return None
    counts: Counter[int] = Counter()
    for number in numbers:
        matrix = tensor.matrices[number].read()
        found = _count_maxima(matrix)
        if found is None:
            about = Described(name=tensor.name, shape=tensor.matrices[number].shape, storage=tensor.storage)
            return read_alone(about, {n: partial(_read_served, tensor.matrices[n]) for n in numbers}).evidence
        counts.update(found)
    assert matrix.packing is not None
    histogram = dict(sorted(counts.items()))
    return CodeEvidence(
        num_groups=sum(histogram.values()),
        histogram={str(code): count for code, count in histogram.items()},
        rules=weigh(histogram, matrix.packing.element, _are_powers_of_two(matrix)),
        facts=(),
    )


def _count_maxima(matrix: StoredMatrix) -> dict[int, int] | None:
    """Counts the largest magnitude codes of groups of 4-bit codes under one scale; `None` for other matrices."""
    packing = matrix.packing
    is_known = packing is not None and packing.element in (E2M1, INT4) and can_group(matrix)
    if packing is None or not is_known or packing.scale is ScaleKind.E4M3 or packing.tile_cols > _MOST_MEMBERS:
        return None
    table = _magnitudes(packing)
    counts = torch.zeros(_NUM_MAGNITUDES, dtype=torch.int64)
    for rows in matrix.row_pieces():
        codes_KB = as_groups(matrix, rows).parts[Part.CODES].view(torch.uint8)
        magnitudes_KB = table.index_select(0, codes_KB.flatten().to(torch.int32)).view(codes_KB.shape)
        largest_K: Tensor = reduce(torch.maximum, magnitudes_KB.unbind(1))
        counts += torch.bincount(largest_K.to(torch.int64), minlength=_NUM_MAGNITUDES)
    return {code: count for code, count in enumerate(counts.tolist()) if count and code}


def _magnitudes(packing: Packing) -> Tensor:
    """Returns the larger magnitude of the two codes of every byte, [256] uint8."""
    nibbles = torch.arange(256, dtype=torch.uint8)
    low, high = (nibble.to(torch.int16) for nibble in (nibbles & 15, nibbles >> 4))
    if packing.element == E2M1:
        return torch.maximum(low & 7, high & 7).to(torch.uint8)
    is_offset = packing.layout in (Layout.GGML_SPLIT, Layout.INT32_WORDS)
    signed = [nibble - 8 if is_offset else (nibble ^ 8) - 8 for nibble in (low, high)]
    return torch.maximum(signed[0].abs(), signed[1].abs()).to(torch.uint8)


def _are_powers_of_two(matrix: StoredMatrix) -> bool:
    scales_TT = matrix.scales()
    return not bool((torch.frexp(scales_TT[scales_TT != 0]).mantissa.abs() != 0.5).any())


def _read_served(source: MatrixSource) -> Served:
    return read_served(source.read())
