"""The gated delta rule of KDA: the recurrence, and the chunked form beside it.

State S is [K, V] per head, fp32. Per token, with decay alpha = exp(g) per K channel:

    S <- Diag(alpha) S;   u = beta (v - S^T k);   S <- S + k u^T;   o = S^T q

Chunked over C tokens, with G the inclusive cumulative sum of g inside the chunk:

    A_ij = beta_i sum_d k_id k_jd exp(G_id - G_jd)  (i > j);   T = (I + A)^-1 Diag(beta)
    V~ = T V - T (exp(G) K) S;   O = (exp(G) Q) S + tril(P) V~,  P_ij = sum_d q_id k_jd exp(G_id - G_jd)
    S <- Diag(exp(G_C)) S + (exp(G_C - G) K)^T V~

exp(G_i - G_j) is factored as exp(G_i - m) exp(m - G_j) with m half the chunk's total decay, so that both
products are plain matrix products; `largest_chunk` keeps every factor finite.

Source: Kimi Linear (arXiv:2510.26692); Kimi K3 report section 2.1.
Legend: B sequences, T tokens, H heads, K key width, V value width, C chunk, M chunks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class DeltaOutput(NamedTuple):
    """What both forms return."""

    o_BTHV: Tensor
    state_BHKV: Tensor


def largest_chunk(gate_lower_bound: float) -> int:
    """Returns the largest power of two C (at most 64) for which exp(C |bound| / 2) is at most exp(40).

    The factors lie in [exp(-40), exp(40)] then, and their products with sums over a head stay far inside fp32.
    """
    chunk = 64
    while chunk > 1 and chunk * abs(gate_lower_bound) > 80.0:
        chunk //= 2
    return chunk


def run_recurrent(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, g_BTHK: Tensor, beta_BTH: Tensor, state_BHKV: Tensor | None
) -> DeltaOutput:
    """Runs the recurrence token by token.

    Args:
        q_BTHK: Normalised and scaled queries, fp32 or fp64 like every other argument.
        k_BTHK: Normalised keys.
        v_BTHV: Values.
        g_BTHK: Log decay, at most 0. A padded token has g = 0 and beta = 0 and leaves the state as it is.
        beta_BTH: Step size in (0, 1).
        state_BHKV: State before the first token; zeros when `None`.
    """
    state = _start(q_BTHK, v_BTHV) if state_BHKV is None else state_BHKV
    outputs = []
    for t in range(q_BTHK.shape[1]):
        k_BHK = k_BTHK[:, t]
        state = state * g_BTHK[:, t].exp().unsqueeze(-1)
        seen_BHV = torch.einsum("bhkv,bhk->bhv", state, k_BHK)
        u_BHV = beta_BTH[:, t].unsqueeze(-1) * (v_BTHV[:, t] - seen_BHV)
        state = state + k_BHK.unsqueeze(-1) * u_BHV.unsqueeze(-2)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q_BTHK[:, t]))
    return DeltaOutput(torch.stack(outputs, dim=1), state)


def run_chunked(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    g_BTHK: Tensor,
    beta_BTH: Tensor,
    state_BHKV: Tensor | None,
    *,
    chunk: int,
) -> DeltaOutput:
    """Runs the same recurrence chunk by chunk; arguments as in `run_recurrent`."""
    num_tokens = q_BTHK.shape[1]
    q, k, v, g = (_to_chunks(x, chunk) for x in (q_BTHK, k_BTHK, v_BTHV, g_BTHK))
    beta = _to_chunks(beta_BTH.unsqueeze(-1), chunk)
    decay = g.cumsum(-2)
    total = decay[..., -1:, :]
    middle = total / 2
    up, down = (decay - middle).exp(), (middle - decay).exp()
    k_up, k_down = k * up, k * down
    a = (beta * (k_up @ k_down.mT)).tril(-1)
    p = ((q * up) @ k_down.mT).tril()
    # exp(G) K and exp(G) Q, without another exponential of the full decay: half of it is in `up` already.
    half = middle.exp()
    solved = _solve_unit_lower(a, torch.cat([beta * k_up * half, beta * v], dim=-1))
    w, u = torch.split(solved, [k.shape[-1], v.shape[-1]], dim=-1)
    q_in, k_out, carry = q * up * half, k_down * half, total.exp().mT
    state = _start(q_BTHK, v_BTHV) if state_BHKV is None else state_BHKV
    outputs = []
    for m in range(q.shape[2]):
        v_new = u[:, :, m] - w[:, :, m] @ state
        outputs.append(q_in[:, :, m] @ state + p[:, :, m] @ v_new)
        state = carry[:, :, m] * state + k_out[:, :, m].mT @ v_new
    o_BHTV = torch.cat(outputs, dim=2)
    return DeltaOutput(o_BHTV[:, :, :num_tokens].transpose(1, 2), state)


def _to_chunks(x_BTHK: Tensor, chunk: int) -> Tensor:
    """Returns `[B, H, M, C, K]`, the tail padded with zeros (which leave the state as it is)."""
    missing = -x_BTHK.shape[1] % chunk
    padded = torch.nn.functional.pad(x_BTHK, (0, 0, 0, 0, 0, missing)) if missing else x_BTHK
    return torch.unflatten(padded, 1, (-1, chunk)).permute(0, 3, 1, 2, 4)


def _solve_unit_lower(a: Tensor, rhs: Tensor) -> Tensor:
    """Returns (I + A)^-1 rhs for strictly lower triangular A."""
    solved: Tensor = torch.linalg.solve_triangular(a, rhs, upper=False, unitriangular=True)
    return solved


def _start(q_BTHK: Tensor, v_BTHV: Tensor) -> Tensor:
    """Returns the zero state `[B, H, K, V]`."""
    b, _, h, k = q_BTHK.shape
    return q_BTHK.new_zeros(b, h, k, v_BTHV.shape[-1])
