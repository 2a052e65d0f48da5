"""Whether a matrix gives the same in a stack of experts: code for stacks is often other code, or scales across experts.

Shape suffixes: E experts, R rows, C columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantaudit.core.certificate import Assumption
from quantaudit.core.errors import InputError
from quantaudit.identity.arrangement import arrange, spread
from quantaudit.identity.differences import bits_of
from quantaudit.identity.sides import Produced, Side
from quantaudit.identity.structured_groups import dominated_groups

EXPERTS = "experts"


def check_experts(side: Side, dtype: torch.dtype, out_dtype: torch.dtype) -> Assumption | None:
    """Runs a side on a stack of matrices and on each of them.

    Args:
        side: The side.
        dtype: Of the inputs.
        out_dtype: Of decoded values where the side leaves it open.

    Returns:
        The premise, or `None` where the side takes no stacks.
    """
    stack_ERC = _stack(side, dtype)
    try:
        together = side.run(stack_ERC, out_dtype)
    except InputError:
        return None
    differing = [at for at, matrix in enumerate(stack_ERC) if not _is_same(side.run(matrix, out_dtype), together, at)]
    count = len(stack_ERC)
    return Assumption(
        side=side.name,
        name=EXPERTS,
        statement="A matrix gives the same in a stack of experts as alone.",
        holds=not differing,
        num_checked=stack_ERC.numel(),
        found="; ".join(f"expert {at + 1} of {count} does not" for at in differing) or None,
    )


def _stack(side: Side, dtype: torch.dtype) -> Tensor:
    """Returns a matrix of structured groups, others, and the first again, [E, R, C]."""
    groups_GN = dominated_groups(side.scheme, dtype).groups_GN
    matrices = spread(groups_GN, arrange(len(groups_GN), groups_GN.shape[1], side.scheme.granularity))
    first = matrices[0]
    return torch.stack([first, first.flip(0) / 2, -first.flip(1), first])


def _is_same(alone: Produced, together: Produced, at: int) -> bool:
    if not torch.equal(bits_of(alone.values.contiguous()), bits_of(together.values[at].contiguous())):
        return False
    if alone.codes is not None and together.codes is not None and not torch.equal(alone.codes, together.codes[at]):
        return False
    if alone.scales is None or together.scales is None:
        return True
    # A scale of the whole stack has no entry of its own for a matrix.
    of_stack = together.scales.reshape(-1)
    size = alone.scales.numel()
    own = of_stack[at * size : (at + 1) * size]
    return torch.equal(bits_of(alone.scales.reshape(-1).contiguous()), bits_of(own.contiguous()))
