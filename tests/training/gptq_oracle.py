"""GPTQ from its definition, in fp64 and without blocks: a second opinion, and a stand-in where the library is missing.

It has the signatures of the three functions of nvidia-modelopt that are called.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quantaudit.training.gptq import SeenInputs


def update_hessian(x_NI: Tensor, hessian_II: Tensor, num_rows: int) -> tuple[Tensor, int]:
    """Adds rows to the mean of 2 x x^T, in place."""
    total = num_rows + len(x_NI)
    if len(x_NI):
        wide = x_NI.double()
        hessian_II.copy_((hessian_II.double() * num_rows + 2 * wide.T @ wide) / total)
    return hessian_II, total


def factorize(hessian_II: Tensor, weight_OI: Tensor, dampening: float) -> Tensor:
    """Returns U with U^T U the inverse of the dampened Hessian, fp32; the identity where it has none."""
    wide, one = hessian_II.double(), torch.eye(len(hessian_II), dtype=torch.float64)
    dampened = wide + dampening * wide.diagonal().mean() * one
    if torch.linalg.cholesky_ex(dampened).info.item():
        return one.float()
    factor: Tensor = torch.linalg.cholesky(torch.linalg.inv(dampened), upper=True)
    return factor.float()


def round_columns(weight_OI: Tensor, factor_II: Tensor, block_size: int, nearest: Callable[[Tensor], Tensor]) -> None:
    """Rounds column after column, in place, and moves each error into all columns that follow."""
    going_OI, factor = weight_OI.double(), factor_II.double()
    for i in range(weight_OI.shape[1]):
        weight_OI[:, i] = nearest(going_OI.float())[:, i]
        error_O = (going_OI[:, i] - weight_OI[:, i].double()) / factor[i, i]
        going_OI[:, i + 1 :] -= error_O.unsqueeze(1) * factor[i, i + 1 :]


def see(x_ENI: Tensor) -> SeenInputs:
    """Returns what experts saw that saw equally many rows, by the definition."""
    wide = x_ENI.double()
    num_rows = x_ENI.shape[1]
    hessian_EII = (2 * wide.mT @ wide / max(num_rows, 1)).float()
    return SeenInputs(hessian_EII=hessian_EII, rows_E=(num_rows,) * len(x_ENI))
