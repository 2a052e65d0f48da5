"""How the unpadded tokens of a batch map to padded sequences, which only the sequence mixers need.

Legend: N tokens without padding, B sequences, T longest sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """The lengths of the sequences in a batch, and where their tokens go in `[B, T]`.

    Invariants: sum(lengths) = N; slot_N is strictly increasing.
    """

    lengths: tuple[int, ...]
    slot_N: Tensor

    @classmethod
    def of(cls, lengths: tuple[int, ...], device: torch.device) -> Segments:
        """Builds the map for sequences of these lengths (each at least 1)."""
        longest = max(lengths)
        length_B = torch.tensor(lengths, device=device)
        taken_BT = torch.arange(longest, device=device) < length_B[:, None]
        return cls(lengths=lengths, slot_N=taken_BT.flatten().nonzero().squeeze(1))

    @property
    def longest(self) -> int:
        """Length T of the padded sequences."""
        return max(self.lengths)

    def pad(self, x_N: Tensor) -> Tensor:
        """Returns `[B, T, ...]` with zeros in the padding."""
        shape = (len(self.lengths), self.longest, *x_N.shape[1:])
        if len(x_N) == shape[0] * shape[1]:
            return x_N.view(shape)
        flat = x_N.new_zeros(shape[0] * shape[1], *x_N.shape[1:])
        return flat.index_copy(0, self.slot_N, x_N).view(shape)

    def unpad(self, x_BT: Tensor) -> Tensor:
        """Returns `[N, ...]`, the padding left out."""
        flat = x_BT.flatten(0, 1)
        return flat if len(flat) == len(self.slot_N) else flat.index_select(0, self.slot_N)

    def last_N(self) -> Tensor:
        """Returns the index in `[0, N)` of the last token of each sequence, `[B]`."""
        return torch.tensor(self.lengths, device=self.slot_N.device).cumsum(0) - 1
