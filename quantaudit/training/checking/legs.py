"""The legs of a comparison between trainer and engine: which must agree bit for bit, and how far the others may part.

    leg                    what is compared                                                      agreement
    sides                  fake-quantized, sent, loaded and derived weights                      bitwise
    canary                 engine against the replay of its declaration: same batch, same path   bitwise
    replayed rollouts      the same, for the rollouts of a step                                  bitwise
    batch m, batch n       one prefill among m sequences, and among n                            derived
    prefill, prefill       a sequence read at once, and in two parts                             derived
    prefill, decode        the trainer's one forward, and the engine's cache path                derived

Bitwise holds on one machine with one library, one number of threads and equal shapes. Where shapes differ, sums are
taken in another order. A chain of n roundings of relative size at most u ends within lambda sqrt(n) u of the exact
value but for a probability of 2 exp(-lambda^2 / 2) (Higham and Mary, SIAM J. Sci. Comput. 41, 2019); two computations
are at most twice that apart, and so, with all logits off by e, are log-probabilities off by 2 e:

    tolerance = 2 * 2 * lambda * sqrt(12 L W) * u * c * S

with L layers of 12 products of up to W terms, S the largest logit, c = 16 the amplification of a stack of norms at
their smallest inputs. A router near a tie, or a quantized input next to the middle of two codes, turns any rounding
into a jump: beyond the tolerance lie jumps and mismatches, and it is the same-step floor that tells them apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from quantaudit.core.recipe import ComputeDtype
from quantaudit.model.config import ModelConfig

UNIT_ROUNDOFF = {ComputeDtype.FLOAT32: 2.0**-24, ComputeDtype.BFLOAT16: 2.0**-8}
_LAMBDA = 8.0
_PRODUCTS = 12
_AMPLIFICATION = 16.0


class Leg(StrEnum):
    """One comparison."""

    SIDES = "sides"
    CANARY = "canary"
    REPLAY = "replayed rollouts"
    BATCH = "batch m, batch n"
    PREFILL = "prefill, prefill"
    DECODE = "prefill, decode"


class Agreement(StrEnum):
    """What a leg is declared as."""

    BITWISE = "bitwise"
    DERIVED = "derived tolerance"


AGREEMENTS = {
    Leg.SIDES: Agreement.BITWISE,
    Leg.CANARY: Agreement.BITWISE,
    Leg.REPLAY: Agreement.BITWISE,
    Leg.BATCH: Agreement.DERIVED,
    Leg.PREFILL: Agreement.DERIVED,
    Leg.DECODE: Agreement.DERIVED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What a tolerance depends on.

    Attributes:
        layers: Layers.
        width: Terms of the longest sum.
        scale: Largest magnitude of a logit.
        dtype: Dtype of the products' inputs and results.
    """

    layers: int
    width: int
    scale: float
    dtype: ComputeDtype


def stack_of(config: ModelConfig, *, scale: float, dtype: ComputeDtype, longest: int) -> Stack:
    """Returns what a model's tolerances depend on.

    Args:
        config: Its sizes.
        scale: Largest magnitude of a logit.
        dtype: Dtype of the computation.
        longest: Tokens of the longest sequence, which attention sums over.
    """
    shared = config.moe_intermediate_size * config.num_shared_experts
    width = max(config.hidden_size, config.intermediate_size, shared, config.kv_lora_rank, longest)
    return Stack(layers=config.num_hidden_layers, width=width, scale=scale, dtype=dtype)


def tolerance(leg: Leg, stack: Stack) -> float:
    """Returns how far log-probabilities may part on a leg, nats; 0 where it is bitwise."""
    if AGREEMENTS[leg] is Agreement.BITWISE:
        return 0.0
    depth = _PRODUCTS * stack.layers * stack.width
    return 4.0 * _LAMBDA * math.sqrt(depth) * UNIT_ROUNDOFF[stack.dtype] * _AMPLIFICATION * stack.scale
