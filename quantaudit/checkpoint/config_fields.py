"""Typed access to one object of a config.json: what is wrong with a value is said with its key and the cure."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NoReturn

from quantaudit.checkpoint.strict_json import shown
from quantaudit.core.errors import InputError
from quantaudit.core.serial import Json

MAX_SIZE = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """One object of the file.

    Attributes:
        where: File and place in it, for messages.
        values: The object.
    """

    where: str
    values: Mapping[str, Json]

    def value(self, key: str) -> Json:
        """Returns the value of a key that must be there."""
        if key not in self.values:
            raise InputError(f"{self.where} lacks {key}", expected="every size and constant", fix=f"add {key}")
        return self.values[key]

    def size(self, key: str, *, low: int = 1, high: int = MAX_SIZE) -> int:
        """Returns an integer from `low` to `high`."""
        value = self.value(key)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.refuse(key, f"an integer from {low} to {high}")
        return value

    def number(self, key: str) -> float:
        """Returns a finite number."""
        value = self.value(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not _is_finite(value):
            self.refuse(key, "a finite number")
        return float(value)

    def positive(self, key: str) -> float:
        """Returns a finite number above zero."""
        number = self.number(key)
        if number <= 0:
            self.refuse(key, "a number above 0")
        return number

    def flag(self, key: str) -> bool:
        """Returns true or false."""
        value = self.value(key)
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value

    def integers(self, key: str, high: int) -> tuple[int, ...]:
        """Returns a list of integers from 1 to `high`."""
        value = self.value(key)
        items = value if isinstance(value, list) else [None]
        good = tuple(x for x in items if isinstance(x, int) and not isinstance(x, bool) and 1 <= x <= high)
        if len(good) < len(items):
            self.refuse(key, f"a list of integers from 1 to {high}")
        return good

    def section(self, key: str) -> Fields:
        """Returns the object under a key."""
        value = self.value(key)
        if not isinstance(value, dict):
            self.refuse(key, "an object")
        return Fields(where=f"{self.where}, {key}", values=value)

    def require(self, allowed: Mapping[str, Json]) -> None:
        """Checks that each of these keys that is there has the one value this stack implements."""
        for key, only in allowed.items():
            # 0 == False in Python; JSON tells them apart.
            if key in self.values and (self.values[key] != only or type(self.values[key]) is not type(only)):
                self.refuse(key, f"{json.dumps(only)}, the only value that is implemented")

    def refuse_unknown(self, known: Collection[str]) -> None:
        """Refuses keys outside `known`: a setting that is not understood cannot be honoured."""
        unknown = sorted(key for key in self.values if key not in known)
        if unknown:
            near = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.75)
            hint = f"did you mean {near[0]}?" if near else "remove it if it changes nothing in the computation"
            raise InputError(
                f"{self.where} has {len(unknown)} unknown keys, first {shown(unknown[0])}"
                if len(unknown) > 1
                else f"{self.where} has the unknown key {shown(unknown[0])}",
                expected="keys whose meaning is known",
                fix=hint,
            )

    def refuse(self, key: str, expected: str) -> NoReturn:
        """Raises the error for the value of a key."""
        text = shown(json.dumps(self.values[key]))[1:-1]
        raise InputError(f"{self.where} has {key} = {text}", expected=expected, fix="correct the configuration")


def _is_finite(value: float) -> bool:
    # An integer beyond the range of float64 is no usable number either.
    return -1e300 < value < 1e300 and math.isfinite(value)
