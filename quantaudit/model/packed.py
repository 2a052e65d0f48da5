"""Sequences as the tensors a forward needs: unpadded inputs, where logits are wanted, and the tokens they predict.

Legend: N input tokens (the last token of a sequence is only a target), M scored positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quantaudit.core.batch import Sequence
from quantaudit.model.segments import Segments


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """The tensors of one batch; logits at selected_M predict target_M."""

    tokens_N: Tensor
    segments: Segments
    selected_M: Tensor
    target_M: Tensor


def pack(sequences: list[Sequence], device: torch.device) -> Packed:
    """Builds the tensors of a batch of at least one sequence."""
    tokens: list[int] = []
    selected: list[int] = []
    targets: list[int] = []
    for sequence in sequences:
        shift = len(tokens)
        tokens.extend(sequence.tokens[:-1])
        selected.extend(range(shift + sequence.scored_from - 1, shift + len(sequence.tokens) - 1))
        targets.extend(sequence.tokens[sequence.scored_from :])
    lengths = tuple(len(s.tokens) - 1 for s in sequences)
    return Packed(
        tokens_N=torch.tensor(tokens, device=device),
        segments=Segments.of(lengths, device),
        selected_M=torch.tensor(selected, device=device),
        target_M=torch.tensor(targets, device=device),
    )
