"""Arithmetic with the answer written in reverse, least significant digit first, so that carries flow as bytes do.

Addition has two-digit operands. The two-step family adds a third number to a sum, in three sizes, and is learned late
and in part. Products, (a + b) * c with c from 2 to 5, are trained early and are no probes: held-out ones stayed out of
reach. The split is decided by the unordered operands: a held-out sum is held out in every order and in every phrasing.
"""

from __future__ import annotations

from random import Random

from quantaudit.probes.draft import Draft, cross, split_of

ADDITION_FRAMES = ("{}+{}=", "add {} {}:", "sum {}+{}:", "{} plus {}:", "total {} {}:", "{} and {} make ")
ADDITION_KINDS = tuple(f"{carry}, {band}" for carry in ("no carry", "carry") for band in ("low", "middle", "high"))
ADDITION_CLUSTERS = cross(len(ADDITION_FRAMES), ADDITION_KINDS)

TWO_STEP_FRAMES = ("{}+{}+{}=", "work {}+{}+{}:", "find {}+{}+{}:", "{}+{} and {}:", "{}+{} then +{}:",
                   "add {} {}, add {}:")  # fmt: skip
# Lowest and highest first, second and third operand of each size.
ONE_DIGIT, TWO_DIGITS = (1, 9), (10, 99)
TWO_STEP_SIZES = {
    "2+1+1": (TWO_DIGITS, ONE_DIGIT, ONE_DIGIT),
    "2+2+1": (TWO_DIGITS, TWO_DIGITS, ONE_DIGIT),
    "2+2+2": (TWO_DIGITS, TWO_DIGITS, TWO_DIGITS),
}
TWO_STEP_KINDS = tuple(f"{size}, {last}" for size in TWO_STEP_SIZES for last in ("last is even", "last is odd"))
TWO_STEP_CLUSTERS = cross(len(TWO_STEP_FRAMES), TWO_STEP_KINDS)

PRODUCT_FRAMES = ("({}+{})*{}=", "work ({}+{})*{}:", "find ({}+{})*{}:", "({}+{}) by {}:", "{}+{} then *{}:",
                  "add {} {}, times {}:")  # fmt: skip
# Lowest and highest first and second operand of each size.
PRODUCT_SIZES = {"1+1": (1, 9, 1, 9), "2+1": (10, 99, 1, 9), "2+2": (10, 99, 10, 99)}
PRODUCT_FACTORS = (2, 5)
PRODUCT_KINDS = tuple(f"{size}, {factor}" for size in PRODUCT_SIZES for factor in ("small factor", "large factor"))
PRODUCT_CLUSTERS = cross(len(PRODUCT_FRAMES), PRODUCT_KINDS)


def draw_addition(rng: Random) -> Draft:
    """Draws a sum of two-digit numbers; kind = whether the units carry, and the band of the first operand."""
    a, b = rng.randrange(10, 100), rng.randrange(10, 100)
    frame = rng.randrange(len(ADDITION_FRAMES))
    carry = "carry" if a % 10 + b % 10 > 9 else "no carry"
    band = ("low", "middle", "high")[(a - 10) // 30]
    split = split_of(f"{min(a, b)}+{max(a, b)}")
    return Draft(ADDITION_FRAMES[frame].format(a, b), _reverse(a + b), f"{frame}/{carry}, {band}", split)


def draw_two_step(rng: Random) -> Draft:
    """Draws a + b + c; kind = size of the operands, and whether the last is even."""
    size = rng.choice(tuple(TWO_STEP_SIZES))
    a, b, c = (rng.randint(*bounds) for bounds in TWO_STEP_SIZES[size])
    frame = rng.randrange(len(TWO_STEP_FRAMES))
    cluster = f"{frame}/{size}, last is {'odd' if c % 2 else 'even'}"
    split = split_of("+".join(map(str, sorted((a, b, c)))))
    return Draft(TWO_STEP_FRAMES[frame].format(a, b, c), _reverse(a + b + c), cluster, split)


def draw_product(rng: Random) -> Draft:
    """Draws (a + b) * c; kind = size of the operands, and whether c is at most 3."""
    size = rng.choice(tuple(PRODUCT_SIZES))
    low_a, high_a, low_b, high_b = PRODUCT_SIZES[size]
    a, b, c = rng.randint(low_a, high_a), rng.randint(low_b, high_b), rng.randint(*PRODUCT_FACTORS)
    frame = rng.randrange(len(PRODUCT_FRAMES))
    cluster = f"{frame}/{size}, {'small' if c <= 3 else 'large'} factor"
    split = split_of(f"({min(a, b)}+{max(a, b)})*{c}")
    return Draft(PRODUCT_FRAMES[frame].format(a, b, c), _reverse((a + b) * c), cluster, split)


def _reverse(number: int) -> str:
    return str(number)[::-1]
