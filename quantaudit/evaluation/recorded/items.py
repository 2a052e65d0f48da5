"""What every reader gives: one item of one run, with its numbers and the digests of what the model was asked."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from enum import StrEnum

from quantaudit.core.errors import InputError
from quantaudit.core.probe import Behaviour
from quantaudit.core.serial import Json


class Format(StrEnum):
    """Where recorded results come from."""

    LM_EVAL = "lm-eval samples"
    INSPECT = "inspect log"
    JSONL = "plain JSONL"
    CSV = "CSV"


class Asked(StrEnum):
    """What two runs must have in common, item by item; each is compared by a digest that the file holds."""

    PROMPT = "prompt"
    TARGET = "target"
    TEMPLATE = "template"
    TOKENIZER = "tokenizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One answered item.

    Attributes:
        id: Unique in its run.
        family: Group that is judged together.
        cluster: Unit of dependence; `None` where the file names none, and the item stands for itself.
        behaviour: What the right response is.
        values: Number by observer; NaN and infinities are kept, an absent number is no entry.
        asked: Digests of what the model was asked.
    """

    id: str
    family: str
    cluster: str | None = None
    behaviour: Behaviour = Behaviour.ANSWER
    values: dict[str, float]
    asked: dict[Asked, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """All items of one run.

    Attributes:
        name: File or folder name, for tables.
        digest: sha256 of the bytes that were read.
        format: How they were written.
        items: In the order of the file.
        metric: What is called accuracy here, such as `acc`; empty where nothing is.
        notes: Sentences that qualify the reading.
    """

    name: str
    digest: str
    format: Format
    items: tuple[Item, ...]
    metric: str = ""
    notes: tuple[str, ...] = ()


def as_number(value: Json, what: str) -> float | None:
    """Returns a number as a float, a truth value as 0 or 1, and nothing for null.

    Raises:
        InputError: If it is something else, or an integer beyond every float.
    """
    if value is None:
        return None
    if not isinstance(value, bool | int | float):
        raise InputError(f"{what} is a {type(value).__name__}", expected="a number, true or false", fix="correct it")
    try:
        return float(value)
    except OverflowError:
        raise InputError(f"{what} is an integer beyond 1e308", expected="a 64-bit float", fix="correct it") from None


def check_score(value: float, what: str) -> float:
    """Returns a score as it is, NaN included.

    Raises:
        InputError: If it is outside 0 to 1.
    """
    if not math.isnan(value) and not 0 <= value <= 1:
        raise InputError(f"{what} is {value:g}", expected="a score from 0 to 1", fix="divide by the largest score")
    return value


def digest_text(text: str) -> str:
    """Returns the sha256 (hex) of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
