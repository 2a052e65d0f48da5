"""Strict JSON accepts objects and nothing that two parsers could read differently."""

from __future__ import annotations

import pytest

from quantaudit.checkpoint.strict_json import parse_object, shown
from quantaudit.core.errors import InputError

BAD = {
    "empty": b"",
    "not JSON": b"weights",
    "cut": b'{"a": 1',
    "list": b"[1]",
    "number": b"3",
    "NaN": b'{"a": NaN}',
    "infinity": b'{"a": -Infinity}',
    "duplicate": b'{"a": 1, "a": 1}',
    "inner duplicate": b'{"a": {"b": 1, "b": 2}}',
    "deep lists": b'{"a": ' + b"[" * 50 + b"]" * 50 + b"}",
    "bottomless lists": b"[" * 200_000,
    "bottomless objects": b'{"a":' * 200_000,
    "not UTF-8": b'{"a": "\xff"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "byte order mark": '\ufeff{"a": 1}'.encode(),
    "endless integer": b'{"a": ' + b"9" * 100_000 + b"}",
    "comment": b'{"a": 1} // x',
    "single quotes": b"{'a': 1}",
    "trailing comma": b'{"a": 1,}',
    "raw newline in a string": b'{"a": "\n"}',
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_anything_but_a_strict_object_is_refused_with_its_place(data: bytes) -> None:
    with pytest.raises(InputError, match="^config.json is not a JSON object: "):
        parse_object(data, "config.json")


def test_a_strict_object_is_parsed() -> None:
    assert parse_object(b' {"a": [1, 2.5, null, true, {"b": "c"}]} ', "x") == {"a": [1, 2.5, None, True, {"b": "c"}]}


def test_a_duplicate_key_is_named() -> None:
    with pytest.raises(InputError, match="the key 'b' is there twice"):
        parse_object(b'{"a": 1, "b": 1, "b": 2}', "x")


def test_foreign_text_is_shown_on_one_short_line() -> None:
    text = shown("\x1b[31m\n\u202e\ud800" + "a" * 1000)
    assert text.isascii() and text.isprintable() and len(text) < 150
