"""Two quantizers are told apart by one input, special blocks are counted apart, and nothing passes unproved."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, takewhile
from pathlib import Path

import pytest
import torch

from quantaudit.core.certificate import BlockKind, Certificate, CertifiedPair, Conclusion, Level
from quantaudit.core.errors import InputError
from quantaudit.core.verdict import ExitCode
from quantaudit.identity import levels
from quantaudit.identity.assumptions import check_assumptions
from quantaudit.identity.certify import certify
from quantaudit.identity.decoding import can_decode, compare_decoding
from quantaudit.identity.differences import Tallies, kind_of
from quantaudit.identity.domain import BF16_INPUT, Block, ladder_block, ladder_blocks
from quantaudit.identity.enumeration import enumerate_blocks
from quantaudit.identity.findings import start_counting
from quantaudit.identity.observe import observe
from quantaudit.identity.recheck import read_certificate, recheck
from quantaudit.identity.sides import open_sides
from tests.identity import quantizers
from tests.identity.quantizers import PLANTED_ABSMAX, PLANTED_VALUE

MINE = "tests.identity.quantizers"


def compare(a: str, b: str, blocks: Iterable[Block]) -> Tallies:
    """Compares two sides on blocks."""
    sides = open_sides(a, b)
    tallies = Tallies(largest=sides[0].scheme.element.max)
    enumerate_blocks(sides, blocks, 1, tallies, torch.bfloat16, lambda stage, done, total: None)
    return tallies


def one_binade(a: str, b: str) -> Tallies:
    """Compares two sides on every value of every statistic in [1, 2)."""
    return compare(a, b, takewhile(lambda block: int(block.ranks_B[0]) >> 7 == 127, ladder_blocks(BF16_INPUT)))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `certify` try two blocks only: the wiring is what is tested then."""
    monkeypatch.setattr(levels, "ladder_blocks", lambda inputs, **settings: islice(ladder_blocks(inputs), 2))


def pair_of(certificate: Certificate) -> CertifiedPair:
    (pair,) = certificate.pairs
    return pair


def test_one_planted_pair_is_found_and_shown() -> None:
    tally = one_binade("mxfp4-even", f"{MINE}:one_pair_off").of(BlockKind.ORDINARY)
    assert tally.values == 1
    assert tally.first is not None
    assert tally.first.statistic.value == PLANTED_ABSMAX
    assert tally.first.value.value == PLANTED_VALUE
    assert tally.first.value.bits == "0xbe78"
    assert (tally.first.a_value.value, tally.first.b_value.value) == (-0.25, 0.0)


def test_equal_quantizers_differ_nowhere() -> None:
    for other in (f"{MINE}:even_codes", "eager:mxfp4-even"):
        tallies = one_binade("mxfp4-even", other)
        assert tallies.differing(BlockKind.ORDINARY).model_dump() == {
            "scales": 0,
            "codes": 0,
            "values": 0,
        }


def test_the_sign_of_zero_is_no_difference_in_value() -> None:
    tally = one_binade("mxfp4-even", f"{MINE}:positive_zeros").of(BlockKind.ORDINARY)
    assert tally.values == 0
    assert tally.zero_signs > 0


def test_scales_codes_and_values_are_counted_separately() -> None:
    differing = one_binade("mxfp4-floor", "mxfp4-even").differing(BlockKind.ORDINARY)
    # `even` goes up from 1.75 on: 32 of the 128 mantissas.
    assert differing.scales == 32
    assert differing.codes is not None and differing.codes > differing.values > 0


def test_differences_are_counted_as_brute_force_counts_them() -> None:
    a, b = open_sides("mxfp4-rceil", "mxfp4-ceil")
    ranks = torch.arange(4 << 7, 5 << 7)  # from 2^-123 on, where there are few values
    values = torch.arange(5 << 7).to(torch.int16).view(torch.bfloat16)
    expected = 0
    for rank in ranks.tolist():
        own = values[: rank + 1]
        groups = torch.zeros(2 * (rank + 1), 32, dtype=torch.bfloat16)
        groups[:, 5] = own[-1]
        groups[:, 9] = torch.cat([own, -own])
        left, right = (side.run(groups, torch.bfloat16).values[:, 9] for side in (a, b))
        expected += int((left != right).sum())
    tallies = compare("mxfp4-rceil", "mxfp4-ceil", [ladder_block(ranks, BF16_INPUT)])
    assert tallies.of(BlockKind.ORDINARY).values == expected > 0


@pytest.mark.parametrize(
    ("absmax", "kind"),
    [
        (0.0, BlockKind.ZERO),
        (2.0**-126, BlockKind.SUBNORMAL),
        (6.0 * 2.0**-126, BlockKind.SUBNORMAL),  # the scale is normal, half of it is not
        (12.0 * 2.0**-126, BlockKind.ORDINARY),
        (1.99 * 2.0**126, BlockKind.ORDINARY),
        (2.0**127, BlockKind.SATURATING),
    ],
)
def test_special_blocks_are_told_by_their_absmax(absmax: float, kind: BlockKind) -> None:
    assert kind_of(absmax, 6.0, 0.5) is kind


def test_no_ordinary_block_decodes_to_a_subnormal_number() -> None:
    for name in ("mxfp4-even", "nf4-b64", "fp4-b64", "int4-g32-div7", "mxfp8-e5m2-floor", "fp8-channel"):
        sides = open_sides(name, name)
        tallies = start_counting(sides)
        smallest = next(x for x in range(1, 32_640) if kind_at(x, tallies) not in (BlockKind.ZERO, BlockKind.SUBNORMAL))
        block = ladder_block(torch.tensor([smallest]), BF16_INPUT)
        values = observe(sides[0], block, None, torch.float32).values_BM
        assert float(values[values != 0].abs().min()) >= 2.0**-126


def kind_at(rank: int, tallies: Tallies) -> BlockKind:
    """Returns the kind of groups whose absmax has this rank."""
    return kind_of(float(BF16_INPUT.numbers(torch.tensor(rank))), tallies.largest, tallies.smallest)


def test_a_departure_in_special_blocks_only_has_its_own_conclusion() -> None:
    certificate = certify("mxfp4-even", f"{MINE}:flushes_tiny", dtype="fp32")
    pair = pair_of(certificate)
    assert pair.special_blocks is Conclusion.EXCEPT_SPECIAL
    assert pair.differing.values == 0
    assert not pair.identical
    assert certificate.exit_code is ExitCode.REJECTED
    assert [s.kind for s in pair.sections if s.differing.values] == [BlockKind.SUBNORMAL]
    assert pair.rule is not None and pair.rule.field == "special blocks: subnormal"


def test_fp32_is_proved_at_the_boundary_for_powers_of_two() -> None:
    certificate = certify("mxfp4-even", f"{MINE}:even_codes", dtype="fp32")
    pair = pair_of(certificate)
    assert (pair.level, pair.special_blocks) == (Level.BOUNDARY, Conclusion.IDENTICAL)
    assert {"monotonic", "position", "other values", "stairs"} <= {premise.name for premise in pair.assumptions}
    assert certificate.exit_code is ExitCode.PASS


def test_fp32_scales_that_cannot_be_enumerated_are_not_called_identical() -> None:
    certificate = certify("int4-g32-div7", "eager:int4-g32-div7", dtype="fp32")
    assert certificate.conclusion is Conclusion.NOT_PROVED
    assert certificate.exit_code is ExitCode.INCONCLUSIVE


@pytest.mark.parametrize(("function", "premise"), [("looks_at_position", "position")])
def test_a_premise_that_fails_is_named(function: str, premise: str) -> None:
    pair = pair_of(certify("mxfp4-even", f"{MINE}:{function}", dtype="fp32"))
    failed = [assumption for assumption in pair.assumptions if not assumption.holds]
    assert premise in {assumption.name for assumption in failed}
    assert all(assumption.found for assumption in failed)
    assert not pair.identical


def test_a_scale_of_the_whole_row_is_not_group_local() -> None:
    pair = pair_of(certify("mxfp4-even", f"{MINE}:looks_at_neighbours", dtype="fp32"))
    failed = {assumption.name for assumption in pair.assumptions if not assumption.holds}
    assert "neighbours" in failed


@pytest.mark.usefixtures("short")
def test_a_failing_premise_alone_keeps_a_pair_from_being_identical(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = check_assumptions

    def fails(*arguments: object) -> object:
        first, *rest = checked(*arguments)  # type: ignore[arg-type]
        return (first.model_copy(update={"holds": False}), *rest)

    monkeypatch.setattr(levels, "check_assumptions", fails)
    certificate = certify("mxfp4-even", "eager:mxfp4-even")
    assert certificate.conclusion is Conclusion.NOT_PROVED
    assert certificate.exit_code is ExitCode.INCONCLUSIVE


@pytest.mark.usefixtures("short")
def test_scales_and_codes_that_a_side_does_not_show_are_not_counted() -> None:
    pair = pair_of(certify("mxfp4-even", f"{MINE}:even"))
    assert pair.level is Level.COMPLETE
    assert (pair.differing.scales, pair.differing.codes, pair.differing.values) == (None, None, 0)


@pytest.mark.usefixtures("short")
def test_a_side_that_refuses_nan_differs_there() -> None:
    pair = pair_of(certify("mxfp4-even", f"{MINE}:refuses_nan"))
    assert pair.special_blocks is Conclusion.EXCEPT_SPECIAL
    assert any("refuses" in note for note in pair.notes)
    assert pair.rule is not None
    assert (pair.rule.field, pair.rule.b_value) == ("special blocks: infinite", "refused")


def test_whole_matrix_scales_are_never_proved_by_sampling() -> None:
    assert certify("nvfp4", "eager:nvfp4", dtype="fp32").conclusion is Conclusion.NOT_PROVED
    assert certify("nvfp4", "nvfp4", dtype="fp32").conclusion is Conclusion.IDENTICAL


def test_a_side_that_only_decodes_is_compared_code_by_code() -> None:
    pytest.importorskip("transformers")
    pair = pair_of(certify("mxfp4-rceil", "transformers:mxfp4-decode"))
    assert (pair.level, pair.special_blocks) == (Level.DECODE_ONLY, Conclusion.EXCEPT_SPECIAL)
    assert pair.num_pairs == 16 * 256
    assert pair.differing.values == 0
    assert [s.kind for s in pair.sections if s.differing.values] == [BlockKind.NAN]
    assert any("Only decoding" in note for note in pair.notes)


def test_every_code_is_decoded_under_every_scale() -> None:
    sides = open_sides("int4-g32-div7", "eager:int4-g32-div7")
    tallies = Tallies(largest=7.0)
    assert can_decode(sides)
    assert compare_decoding(sides, torch.bfloat16, tallies) == 32_640
    assert sum(tally.num_pairs for tally in tallies.by_kind.values()) == 32_640 * 16
    assert sum(tally.values for tally in tallies.by_kind.values()) == 0


def test_groups_of_another_size_are_compared_on_matrices() -> None:
    pair = pair_of(certify("int4-g32-div7", "int4-g128-div7"))
    assert (pair.level, pair.special_blocks) == (Level.CONDITIONAL, Conclusion.DIFFERENT)
    assert pair.rule is not None and pair.rule.field == "granularity"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("other_shape", "returned the shape"),
        ("codes_only", "returned torch.uint8"),
        ("nothing", "returned a NoneType"),
        ("raises", "raised RuntimeError: no kernel for this device"),
        ("in_place", "changes its input"),
        ("random_rounding", "is not deterministic"),
        ("raises_its_own", "raised OwnError: no such kernel"),
        ("exits", "raised SystemExit: 0"),
        ("on_meta", "returned a tensor on meta"),
        ("sparse", "of the layout torch.sparse_coo"),
        ("absent", "cannot be imported"),
        ("PLANTED_VALUE", "which is a float"),
    ],
)
def test_a_callable_that_misbehaves_is_named(function: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        certify("mxfp4-even", f"{MINE}:{function}")
    assert function in caught.value.given


@pytest.mark.usefixtures("short")
def test_a_difference_of_one_call_is_one_of_the_callable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantizers, "_calls", [0])
    with pytest.raises(InputError, match="not deterministic: called again on the same matrix"):
        certify("mxfp4-even", f"{MINE}:one_call_off")


def test_two_callables_need_a_scheme_for_their_groups() -> None:
    with pytest.raises(InputError, match="--like"):
        certify(f"{MINE}:even", f"{MINE}:even_away")
    pair = pair_of(certify(f"{MINE}:even", f"{MINE}:even_away", like="mxfp4-even", dtype="fp32"))
    assert pair.special_blocks is Conclusion.DIFFERENT
    assert pair.rule is not None
    assert (pair.rule.field, pair.rule.a_value, pair.rule.b_value) == ("tie", "even", "away")


def test_a_certificate_is_the_same_when_made_again(tmp_path: Path) -> None:
    made = certify("mxfp4-even", "mxfp4-even-zero", dtype="fp32")
    path = tmp_path / "certificate.json"
    path.write_text(made.to_json())
    stored = read_certificate(path)
    assert stored == made
    again = recheck(stored)
    assert again.holds and again.changes == () and again.environment == ()


def test_a_certificate_that_no_longer_holds_says_what_changed() -> None:
    pair = pair_of(certify("mxfp4-even", "mxfp4-even", dtype="fp32"))
    forged = pair.model_copy(update={"num_pairs": pair.num_pairs + 1})
    older = forged.environment.model_copy(update={"torch": "2.9.0"})
    again = recheck(Certificate(pairs=(forged.model_copy(update={"environment": older}),)))
    assert not again.holds
    assert len(again.changes) == 1 and "num_pairs" in again.changes[0]
    assert len(again.environment) == 1 and "2.9.0" in again.environment[0]
    assert again.exit_code is ExitCode.REJECTED


@pytest.mark.parametrize("text", ["", "{}", '{"schema_version": 2, "kind": "certificate", "pairs": []}', "\xff"])
def test_a_file_that_is_no_certificate_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"other\.json"):
        read_certificate(path)


@pytest.mark.slow
def test_every_pair_of_bf16_is_tried() -> None:
    pair = pair_of(certify("mxfp4-floor", "mxfp4-even"))
    special = sum(s.num_pairs for s in pair.sections if s.kind in (BlockKind.INFINITE, BlockKind.NAN))
    assert pair.num_pairs - special == 32_640 * 32_641
    assert pair.rule is not None and pair.rule.field == "scale.rounding"
    one = one_binade("mxfp4-floor", "mxfp4-even").differing(BlockKind.ORDINARY)
    # 2^k x and 2^k a give 2^k times the same, so all but the ends of the range have equal scale counts.
    assert pair.differing.scales is not None and one.scales is not None
    assert pair.differing.scales % one.scales == 0


@pytest.mark.slow
def test_one_planted_pair_is_found_among_all() -> None:
    pair = pair_of(certify(f"{MINE}:one_pair_off", "mxfp4-even"))
    assert pair.differing.values == 1
    assert pair.counterexample is not None
    assert (pair.counterexample.statistic.value, pair.counterexample.value.value) == (PLANTED_ABSMAX, PLANTED_VALUE)
    assert any("No scheme" in note for note in pair.notes)


@pytest.mark.usefixtures("short")
def test_a_version_that_was_not_tested_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "gguf 9.9: what is said of its quantizers was tested with another"
    monkeypatch.setattr("quantaudit.identity.sides.caveat_of", lambda backend: said)
    pair = pair_of(certify("mxfp4-floor-zero", "conventions:triton-mxfp4-down"))
    assert pair.notes[0] == f"{said}."
