"""Tokens are bytes, and control tokens stay out of text."""

from __future__ import annotations

from quantaudit.probes.tokenizer import BOS, EOS, PAD, VOCAB_SIZE, decode, encode


def test_every_ascii_character_is_its_code() -> None:
    text = "".join(map(chr, range(128)))
    assert encode(text) == list(range(128))
    assert decode(range(128)) == text


def test_text_beyond_ascii_survives_the_round_trip() -> None:
    text = "gr\u00fc\u00df \u4f60\u597d"
    assert decode(encode(text)) == text


def test_control_tokens_are_distinct_ids_inside_the_vocabulary_and_vanish_in_text() -> None:
    assert len({BOS, EOS, PAD} - set(range(256))) == 3
    assert max(BOS, EOS, PAD) < VOCAB_SIZE
    assert decode([BOS, *encode("ok"), EOS, PAD, VOCAB_SIZE - 1]) == "ok"


def test_vocabulary_divides_into_groups_of_32() -> None:
    assert VOCAB_SIZE % 32 == 0
