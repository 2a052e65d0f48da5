"""The premises that make an enumeration a proof, tested on structured groups.

An enumeration of (statistic, value) pairs covers every tensor if the result for a value depends on nothing else: not on
the other values of its group, nor on where it stands, nor on other groups, nor on the call. No finite test proves that
of code that is not read; a single failure refutes it.

Shape suffixes: G groups, N members of a group.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from quantaudit.core.certificate import Assumption
from quantaudit.core.scheme import PerTensor, Scheme
from quantaudit.identity.differences import bits_of, exact_number
from quantaudit.identity.domain import BF16_INPUT, INPUTS, listed_block
from quantaudit.identity.expert_stacks import check_experts
from quantaudit.identity.fast_reference import is_two_level
from quantaudit.identity.laying import lay_out
from quantaudit.identity.observe import Grouped, is_signed, observe, run_groups
from quantaudit.identity.sides import Side
from quantaudit.identity.structured_groups import Dominated, dominated_groups
from quantaudit.identity.treads import tread_edges

_MOST_MOVES = 31  # by how many positions the members of a group are moved: all of them in groups of 32
_MOST_MOVED = 1 << 20  # values
_ABOVE = 3  # exponent of the absmax of a matrix of two levels
_SEED = 20260802


def check_assumptions(side: Side, dtype: torch.dtype, out_dtype: torch.dtype) -> tuple[Assumption, ...]:
    """Tests the premises on one side.

    Args:
        side: The side; one that is its scheme is compared with tensor code instead.
        dtype: Of the inputs.
        out_dtype: Of decoded values where the side leaves it open.
    """
    if side.has_stairs:
        return (_check_stairs(side, dtype, out_dtype),)
    scheme = side.scheme
    given = dominated_groups(scheme, dtype)
    if is_two_level(scheme):
        given = _below_one(given)
    base = run_groups(side, given.groups_GN, scheme, out_dtype, _absmax_above(scheme, dtype))
    everything = torch.ones_like(given.groups_GN, dtype=torch.bool)
    tests = [
        ("repeatable", "One input always gives the same bits.", given.groups_GN, base, everything),
        *_vary(given, base, scheme),
    ]
    found = [_compare(side, *test, out_dtype) for test in tests]
    stacked = check_experts(side, dtype, out_dtype)
    return (*found, *(() if stacked is None else (stacked,)))


_Test = tuple[str, str, Tensor, Grouped, Tensor]


def _vary(given: Dominated, base: Grouped, scheme: Scheme) -> Iterator[_Test]:
    """Yields changed groups with what they must give, and where."""
    groups_GN, position_G = given
    rows_G = torch.arange(len(groups_GN))
    everywhere_GN = torch.ones_like(groups_GN, dtype=torch.bool)
    is_anchor_GN = torch.zeros_like(everywhere_GN)
    is_anchor_GN[rows_G, position_G] = True
    if not isinstance(scheme.granularity, PerTensor):
        moved = groups_GN.flip(0)
        yield "group-local", "A group gives the same wherever it lies.", moved, _flipped(base), everywhere_GN
        mixed = groups_GN.clone()
        mixed[1::2] = mixed[1::2].flip(0) * 3
        kept_GN = everywhere_GN.clone()
        kept_GN[1::2] = False
        yield "neighbours", "A group gives the same whatever other groups hold.", mixed, base, kept_GN
    moves = _moves(groups_GN)
    rolled, expected = torch.cat([groups_GN.roll(by, 1) for by in moves]), _rolled(base, moves)
    where = everywhere_GN.repeat(len(moves), 1)
    yield "position", "A value gives the same wherever it stands in its group.", rolled, expected, where
    rng = torch.Generator().manual_seed(_SEED)
    kept_GN = is_anchor_GN | (torch.rand(groups_GN.shape, generator=rng) < 0.5)
    limit_G1 = groups_GN[rows_G, position_G].abs().unsqueeze(1) * 0.75
    fresh = ((torch.rand(groups_GN.shape, generator=rng) * 2 - 1).to(groups_GN.dtype)) * limit_G1
    others = torch.where(kept_GN, groups_GN, fresh)
    yield "other values", "A value gives the same whatever smaller values share its group.", others, base, kept_GN
    yield _repeat_maximum(given, base, scheme)
    if not is_signed(scheme):
        turned = torch.where(is_anchor_GN, -groups_GN, groups_GN)
        yield "sign of the statistic", "The sign of the largest value moves no other.", turned, base, ~is_anchor_GN


def _repeat_maximum(given: Dominated, base: Grouped, scheme: Scheme) -> _Test:
    """Returns groups that hold the largest value a second time, at one position after the other."""
    groups_GN, position_G = given
    rows_G = torch.arange(len(groups_GN))
    peak_G = groups_GN[rows_G, position_G]
    repeated, kept = [], []
    for by in _moves(groups_GN):
        second_G = (position_G + by) % groups_GN.shape[1]
        twice_GN, kept_GN = groups_GN.clone(), torch.ones_like(groups_GN, dtype=torch.bool)
        twice_GN[rows_G, second_G] = -peak_G if by % 2 == 0 and not is_signed(scheme) else peak_G
        kept_GN[rows_G, second_G] = False
        repeated.append(twice_GN)
        kept.append(kept_GN)
    statement = "A value gives the same if the largest value is there twice."
    return "second maximum", statement, torch.cat(repeated), _repeated(base, len(repeated)), torch.cat(kept)


def _moves(groups_GN: Tensor) -> list[int]:
    """Returns by how much members are moved: by every distance in small groups, by some in others."""
    num_groups, size = groups_GN.shape
    most = max(3, min(_MOST_MOVES, size - 1, _MOST_MOVED // (num_groups * size)))
    step = max(1, (size - 1) // most)
    return list(range(1, size, step))[:most]


def _compare(
    side: Side,
    name: str,
    statement: str,
    groups_GN: Tensor,
    expected: Grouped,
    where_GN: Tensor,
    out_dtype: torch.dtype,
) -> Assumption:
    above = _absmax_above(side.scheme, groups_GN.dtype)
    found = run_groups(side, groups_GN, side.scheme, out_dtype, above)
    differs_GN = (bits_of(found.values_GN) != bits_of(expected.values_GN)) & where_GN
    if found.codes_GN is not None and expected.codes_GN is not None:
        differs_GN |= (found.codes_GN != expected.codes_GN) & where_GN
    if found.scales_G is not None and expected.scales_G is not None:
        differs_GN |= (bits_of(found.scales_G) != bits_of(expected.scales_G)).unsqueeze(1) & where_GN
    return Assumption(
        side=side.name,
        name=name,
        statement=statement,
        holds=not bool(differs_GN.any()),
        num_checked=int(where_GN.sum()),
        found=_first_failure(differs_GN, groups_GN, found, expected),
    )


def _first_failure(differs_GN: Tensor, groups_GN: Tensor, found: Grouped, expected: Grouped) -> str | None:
    if not differs_GN.any():
        return None
    group, member = differs_GN.nonzero()[0].tolist()
    numbers = [exact_number(float(x[group, member])) for x in (groups_GN, expected.values_GN, found.values_GN)]
    given, before, after = (f"{number.value!r} ({number.bits})" for number in numbers)
    return f"{int(differs_GN.sum())} values; the first, {given}, gave {before} and then {after}"


def _check_stairs(side: Side, dtype: torch.dtype, out_dtype: torch.dtype) -> Assumption:
    """Compares the stairs with tensor code on both sides of every tread, for every statistic of one binade."""
    inputs = INPUTS[dtype]
    step = 1 << (inputs.mantissa_bits - BF16_INPUT.mantissa_bits)
    ranks_B = torch.arange(inputs.rank_of_one, inputs.rank_of_one + (1 << inputs.mantissa_bits), step)
    above = (inputs.rank_of_one + (_ABOVE << inputs.mantissa_bits)) if is_two_level(side.scheme) else None
    edges_BM = tread_edges(side.scheme, ranks_B, inputs, matrix_rank=above)
    block = listed_block(ranks_B, edges_BM, inputs, matrix_rank=above)
    climbed = observe(side, block, None, out_dtype)
    run = observe(side, block, lay_out(block, side.scheme, is_statistic_first=True), out_dtype)
    assert climbed.codes_BM is not None and run.codes_BM is not None
    differs_BM = (bits_of(climbed.values_BM) != bits_of(run.values_BM)) | (climbed.codes_BM != run.codes_BM)
    return Assumption(
        side=side.name,
        name="stairs",
        statement="What is read off the stairs is what tensor code computes, on both sides of every step.",
        holds=not bool(differs_BM.any()),
        num_checked=differs_BM.numel(),
        found=f"{int(differs_BM.sum())} values" if differs_BM.any() else None,
    )


def _below_one(given: Dominated) -> Dominated:
    """Returns the groups moved by powers of two to maxima from 2^-8 to 1, so that a matrix can hold all of them."""
    exponent_G = torch.frexp(given.groups_GN.float().abs().amax(1)).exponent
    wanted_G = -(torch.arange(len(exponent_G)) % 9)
    moved_GN = given.groups_GN.double() * torch.exp2((wanted_G - exponent_G).double()).unsqueeze(1)
    return given._replace(groups_GN=moved_GN.to(given.groups_GN.dtype))


def _absmax_above(scheme: Scheme, dtype: torch.dtype) -> Tensor | None:
    """Returns an absmax of the matrix above all groups that are tried, where the scale depends on it."""
    return torch.tensor([2.0**_ABOVE], dtype=dtype) if is_two_level(scheme) else None


def _flipped(base: Grouped) -> Grouped:
    scales_G = None if base.scales_G is None else base.scales_G.flip(0)
    codes_GN = None if base.codes_GN is None else base.codes_GN.flip(0)
    return base._replace(scales_G=scales_G, codes_GN=codes_GN, values_GN=base.values_GN.flip(0))


def _rolled(base: Grouped, moves: list[int]) -> Grouped:
    codes = None if base.codes_GN is None else torch.cat([base.codes_GN.roll(by, 1) for by in moves])
    values = torch.cat([base.values_GN.roll(by, 1) for by in moves])
    return _repeated(base, len(moves))._replace(codes_GN=codes, values_GN=values)


def _repeated(base: Grouped, count: int) -> Grouped:
    scales_G = None if base.scales_G is None else base.scales_G.repeat(count)
    codes_GN = None if base.codes_GN is None else base.codes_GN.repeat(count, 1)
    return base._replace(scales_G=scales_G, codes_GN=codes_GN, values_GN=base.values_GN.repeat(count, 1))
