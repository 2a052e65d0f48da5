"""The split of an item follows from its content, in the stated shares."""

from __future__ import annotations

from collections import Counter

from quantaudit.core.probe import Split
from quantaudit.probes.draft import deal_split, split_of


def test_split_is_the_digest_modulo_100() -> None:
    # printf abc | sha256sum begins ba7816bf8f01cfea, and 0xba7816bf8f01cfea = 13436514500253700074.
    assert split_of("abc") is Split.TRAIN  # 74
    # printf '' | sha256sum begins e3b0c44298fc1c14, and 0xe3b0c44298fc1c14 = 16406829232824261652.
    assert split_of("") is Split.TRAIN  # 52


def test_shares_are_80_10_10() -> None:
    num_items = 20_000
    counts = Counter(split_of(f"item {i}") for i in range(num_items))
    for split, share in ((Split.TRAIN, 0.8), (Split.SELECT, 0.1), (Split.AUDIT, 0.1)):
        # Four standard deviations of a binomial count.
        assert abs(counts[split] - share * num_items) < 4 * (num_items * share * (1 - share)) ** 0.5


def test_any_ten_dealt_in_a_row_hold_eight_train_one_select_one_audit() -> None:
    for subject in ("vraku", "vreku", "", "a b"):
        for start in range(70):
            dealt = Counter(deal_split(subject, number) for number in range(start, start + 10))
            assert dealt == {Split.TRAIN: 8, Split.SELECT: 1, Split.AUDIT: 1}


def test_deals_of_different_subjects_begin_at_different_places() -> None:
    held_out = {next(n for n in range(10) if deal_split(f"w{i}", n) is Split.AUDIT) for i in range(200)}
    assert held_out == set(range(10))
