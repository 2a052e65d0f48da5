"""A second, deliberately naive forward pass of the whole model, to be compared with the real one.

Written from the published equations alone: float64, NumPy, one sequence, one token at a time, one head at a time, a
plain dictionary of weights under their on-disk names. Nothing is batched, chunked, packed or cached, and nothing is
imported from the package under test, so that an error common to both would have to be made twice.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Weights = Mapping[str, Vector]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Holds every size and constant of a model; names are those of the on-disk configuration where it has one."""

    num_hidden_layers: int
    full_attn_layers: tuple[int, ...]
    attn_res_block_size: int
    first_k_dense_replace: int
    moe_layer_freq: int
    rms_norm_eps: float
    num_heads: int
    key_dim: int
    value_dim: int
    short_conv_kernel_size: int
    gate_lower_bound: float
    l2_norm_eps: float
    num_attention_heads: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    kv_lora_rank: int
    low_rank_norm_eps: float
    num_experts: int
    num_experts_per_token: int
    moe_renormalize: bool
    routed_scaling_factor: float
    latent_moe_use_norm: bool
    activation_situ_beta: float
    activation_situ_linear_beta: float | None

    def is_full_attention(self, layer: int) -> bool:
        """Returns whether a 0-based layer is MLA; the configuration counts from one."""
        return layer + 1 in self.full_attn_layers

    def is_sparse(self, layer: int) -> bool:
        """Returns whether a 0-based layer has a mixture of experts."""
        return layer >= self.first_k_dense_replace and layer % self.moe_layer_freq == 0


@dataclass(slots=True, kw_only=True)
class Trace:
    """Collects what a forward pass saw, one entry a layer; for routing, one list a layer with an entry a token."""

    bank_lengths: list[int] = field(default_factory=list)
    prefixes: list[Vector] = field(default_factory=list)
    expert_ids: dict[int, list[list[int]]] = field(default_factory=dict)
    expert_weights: dict[int, list[list[float]]] = field(default_factory=dict)


def sigmoid(x: Vector) -> Vector:
    """Returns the logistic function, written so that neither tail overflows."""
    return np.where(x >= 0, 1.0 / (1.0 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1.0 + np.exp(-np.abs(x))))


def rms_norm(x: Vector, weight: Vector, eps: float) -> Vector:
    """Returns x divided by its root mean square, times the weight as stored."""
    return x / math.sqrt(float(np.mean(x * x)) + eps) * weight


def situ(gate: Vector, up: Vector, beta: float, linear_beta: float | None) -> Vector:
    """Returns beta tanh(gate / beta) sigmoid(gate) times the saturating linear branch; a beta of 0 means 1."""
    branch = up if linear_beta is None else linear_beta * np.tanh(up / linear_beta)
    bound = beta if beta != 0.0 else 1.0
    return bound * np.tanh(gate / bound) * sigmoid(gate) * branch


def decay(pre: Vector, bias: Vector, a_log: float, lower_bound: float) -> Vector:
    """Returns the log decay of one head: the bias is inside the product with exp(A_log)."""
    return lower_bound * sigmoid(math.exp(a_log) * (pre + bias))


def delta_step(state: Vector, q: Vector, k: Vector, v: Vector, log_decay: Vector, beta: float) -> tuple[Vector, Vector]:
    """Advances one head's [K, V] state by one token and read it; q and k are already normalised."""
    state = np.exp(log_decay)[:, None] * state
    correction = beta * (v - state.T @ k)
    state = state + np.outer(k, correction)
    return state, state.T @ q


def mix(bank: list[Vector], prefix: Vector, norm: Vector, query: Vector, eps: float) -> Vector:
    """Returns the attention residual of one token: softmax over the bank and, last, the prefix."""
    sources = [*bank, prefix]
    scores = [float(np.sum(s / math.sqrt(float(np.mean(s * s)) + eps) * norm * query)) for s in sources]
    top = max(scores)
    exponentials = [math.exp(score - top) for score in scores]
    total = sum(exponentials)
    mixture: Vector = np.sum([e / total * s for e, s in zip(exponentials, sources, strict=True)], axis=0)
    return mixture


def convolve(rows: list[Vector], kernel: Vector) -> list[Vector]:
    """Returns SiLU of the causal depthwise convolution; the last tap meets the current token."""
    taps = kernel.shape[-1]
    outputs = []
    for now in range(len(rows)):
        total = np.zeros_like(rows[0])
        for tap in range(taps):
            source = now - (taps - 1) + tap
            if source >= 0:
                total = total + kernel[:, tap] * rows[source]
        outputs.append(total * sigmoid(total))
    return outputs


def kda(sizes: Sizes, weights: Weights, prefix: str, rows: list[Vector]) -> list[Vector]:
    """Returns the outputs of one delta-attention layer for a sequence of normalised inputs."""
    streams = {}
    for name in ("q", "k", "v"):
        projected = [weights[f"{prefix}{name}_proj.weight"] @ x for x in rows]
        kernel = weights[f"{prefix}{name}_conv1d.weight"].reshape(-1, sizes.short_conv_kernel_size)
        streams[name] = convolve(projected, kernel)
    outputs: list[list[Vector]] = [[] for _ in rows]
    for head in range(sizes.num_heads):
        keys = slice(head * sizes.key_dim, (head + 1) * sizes.key_dim)
        values = slice(head * sizes.value_dim, (head + 1) * sizes.value_dim)
        state = np.zeros((sizes.key_dim, sizes.value_dim))
        for token, x in enumerate(rows):
            pre = (weights[f"{prefix}f_b_proj.weight"] @ (weights[f"{prefix}f_a_proj.weight"] @ x))[keys]
            bias = weights[f"{prefix}dt_bias"].reshape(-1)[keys]
            log_decay = decay(pre, bias, float(weights[f"{prefix}A_log"].reshape(-1)[head]), sizes.gate_lower_bound)
            beta = float(sigmoid(weights[f"{prefix}b_proj.weight"] @ x)[head])
            q, k, v = streams["q"][token][keys], streams["k"][token][keys], streams["v"][token][values]
            q = q / math.sqrt(float(q @ q) + sizes.l2_norm_eps) / math.sqrt(sizes.key_dim)
            k = k / math.sqrt(float(k @ k) + sizes.l2_norm_eps)
            state, out = delta_step(state, q, k, v, log_decay, beta)
            gate = sigmoid(weights[f"{prefix}g_proj.weight"] @ x)[values]
            outputs[token].append(rms_norm(out, weights[f"{prefix}o_norm.weight"], sizes.rms_norm_eps) * gate)
    return [weights[f"{prefix}o_proj.weight"] @ np.concatenate(heads) for heads in outputs]


def mla(sizes: Sizes, weights: Weights, prefix: str, rows: list[Vector]) -> list[Vector]:
    """Returns the outputs of one latent-attention layer: no positions, one shared key part, a sigmoid gate."""
    nope, rope, value = sizes.qk_nope_head_dim, sizes.qk_rope_head_dim, sizes.v_head_dim
    queries, keys, values, gates = [], [], [], []
    for x in rows:
        low = weights[f"{prefix}q_a_proj.weight"] @ x
        low = rms_norm(low, weights[f"{prefix}q_a_layernorm.weight"], sizes.low_rank_norm_eps)
        queries.append((weights[f"{prefix}q_b_proj.weight"] @ low).reshape(sizes.num_attention_heads, nope + rope))
        compressed = weights[f"{prefix}kv_a_proj_with_mqa.weight"] @ x
        latent, shared = compressed[: sizes.kv_lora_rank], compressed[sizes.kv_lora_rank :]
        latent = rms_norm(latent, weights[f"{prefix}kv_a_layernorm.weight"], sizes.low_rank_norm_eps)
        expanded = (weights[f"{prefix}kv_b_proj.weight"] @ latent).reshape(sizes.num_attention_heads, nope + value)
        keys.append([np.concatenate([expanded[head, :nope], shared]) for head in range(sizes.num_attention_heads)])
        values.append(expanded[:, nope:])
        gates.append(sigmoid(weights[f"{prefix}g_proj.weight"] @ x))
    outputs = []
    for now in range(len(rows)):
        heads = []
        for head in range(sizes.num_attention_heads):
            scores = [float(queries[now][head] @ keys[t][head]) / math.sqrt(nope + rope) for t in range(now + 1)]
            top = max(scores)
            exponentials = [math.exp(score - top) for score in scores]
            total = sum(exponentials)
            heads.append(np.sum([e / total * values[t][head] for t, e in enumerate(exponentials)], axis=0))
        outputs.append(weights[f"{prefix}o_proj.weight"] @ (np.concatenate(heads) * gates[now]))
    return outputs


def dense(sizes: Sizes, weights: Weights, prefix: str, x: Vector) -> Vector:
    """Returns a gated MLP of one token (layer 0's and the shared experts')."""
    gate, up = weights[f"{prefix}gate_proj.weight"] @ x, weights[f"{prefix}up_proj.weight"] @ x
    hidden = situ(gate, up, sizes.activation_situ_beta, sizes.activation_situ_linear_beta)
    return weights[f"{prefix}down_proj.weight"] @ hidden


def route(sizes: Sizes, scores: Vector, bias: Vector) -> tuple[list[int], list[float]]:
    """Returns the chosen experts of one token and their weights; the bias selects, the score weighs, a tie goes low."""
    order = sorted(range(sizes.num_experts), key=lambda expert: (-(scores[expert] + bias[expert]), expert))
    chosen = order[: sizes.num_experts_per_token]
    weights = [float(scores[expert]) for expert in chosen]
    if sizes.moe_renormalize and sizes.num_experts_per_token > 1:
        total = sum(weights) + 1e-20
        weights = [weight / total for weight in weights]
    return chosen, [weight * sizes.routed_scaling_factor for weight in weights]


def moe(sizes: Sizes, weights: Weights, prefix: str, x: Vector) -> tuple[Vector, list[int], list[float]]:
    """Returns a sparse layer's output for one token, with its experts and their weights."""
    scores = sigmoid(weights[f"{prefix}gate.weight"] @ x)
    chosen, shares = route(sizes, scores, weights[f"{prefix}gate.e_score_correction_bias"])
    latent = weights[f"{prefix}routed_expert_down_proj.weight"] @ x
    combined = np.zeros_like(latent)
    for expert, share in zip(chosen, shares, strict=True):
        own = f"{prefix}experts.{expert}."
        gate, up = weights[f"{own}w1.weight"] @ latent, weights[f"{own}w3.weight"] @ latent
        hidden = situ(gate, up, sizes.activation_situ_beta, sizes.activation_situ_linear_beta)
        combined = combined + share * (weights[f"{own}w2.weight"] @ hidden)
    if sizes.latent_moe_use_norm:
        combined = rms_norm(combined, weights[f"{prefix}routed_expert_norm.weight"], sizes.rms_norm_eps)
    routed = weights[f"{prefix}routed_expert_up_proj.weight"] @ combined
    return routed + dense(sizes, weights, f"{prefix}shared_experts.", x), chosen, shares


def forward(sizes: Sizes, weights: Weights, tokens: list[int]) -> tuple[Vector, Trace]:
    """Returns the logits [T, vocab] of one sequence and what was seen on the way."""
    trace = Trace()
    eps = sizes.rms_norm_eps

    def mixture(t: int, name: str) -> Vector:
        norm, query = weights[f"{name}_norm.weight"], weights[f"{name}_proj.weight"].reshape(-1)
        return mix(bank[t], prefix[t], norm, query, eps)

    prefix = [weights["model.embed_tokens.weight"][token] for token in tokens]
    bank: list[list[Vector]] = [[] for _ in tokens]
    for layer in range(sizes.num_hidden_layers):
        name = f"model.layers.{layer}."
        mixed = [mixture(t, f"{name}self_attention_res") if bank[t] else prefix[t] for t in range(len(tokens))]
        starts_block = layer % sizes.attn_res_block_size == 0
        if starts_block:
            for t in range(len(tokens)):
                bank[t].append(prefix[t])
        attention = mla if sizes.is_full_attention(layer) else kda
        normed = [rms_norm(x, weights[f"{name}input_layernorm.weight"], eps) for x in mixed]
        attended = attention(sizes, weights, f"{name}self_attn.", normed)
        prefix = [out if starts_block else prefix[t] + out for t, out in enumerate(attended)]
        ids, shares = [], []
        for t in range(len(tokens)):
            x = rms_norm(mixture(t, f"{name}mlp_res"), weights[f"{name}post_attention_layernorm.weight"], eps)
            if sizes.is_sparse(layer):
                out, chosen, share = moe(sizes, weights, f"{name}block_sparse_moe.", x)
                ids.append(chosen)
                shares.append(share)
            else:
                out = dense(sizes, weights, f"{name}mlp.", x)
            prefix[t] = prefix[t] + out
        if ids:
            trace.expert_ids[layer], trace.expert_weights[layer] = ids, shares
        trace.bank_lengths.append(len(bank[0]))
        trace.prefixes.append(np.stack(prefix))
    final = [
        rms_norm(mixture(t, "model.output_attn_res"), weights["model.norm.weight"], eps) for t in range(len(tokens))
    ]
    return np.stack([weights["lm_head.weight"] @ x for x in final]), trace
