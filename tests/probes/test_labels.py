"""Every label is derived again from its prompt by other means than those that made it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from quantaudit.core.probe import ProbeSet
from quantaudit.probes.world import FAMILIES, TRAINED_ONLY, Item, World

FACT_PROMPTS = (r"(?P<relation>\w+) of (?P<subject>\w+)\?", r"(?P<subject>\w+) (?P<relation>\w+):",
                r"which (?P<relation>\w+) has (?P<subject>\w+)\?")  # fmt: skip


def add_digits(a: str, b: str) -> str:
    """Adds two numbers digit by digit with carries; operands and result are least significant digit first."""
    digits, carry = [], 0
    for place in range(max(len(a), len(b))):
        total = carry + sum(int(number[place]) for number in (a, b) if place < len(number))
        digits.append("0123456789"[total % 10])
        carry = total // 10
    return "".join(digits) + ("1" if carry else "")


def numbers_in(prompt: str) -> list[str]:
    """Returns the numbers of `prompt`, each least significant digit first."""
    return [number[::-1] for number in re.findall(r"\d+", prompt)]


def answer_addition(world: World, prompt: str) -> str:
    a, b = numbers_in(prompt)
    return add_digits(a, b)


def answer_two_step(world: World, prompt: str) -> str:
    a, b, c = numbers_in(prompt)
    return add_digits(add_digits(b, c), a)


def answer_products(world: World, prompt: str) -> str:
    a, b, factor = numbers_in(prompt)
    total, step = "0", add_digits(a, b)
    for _ in range(int(factor)):
        total = add_digits(total, step)
    return total


def answer_recall(world: World, prompt: str) -> str:
    pairs = re.findall(r"([a-z])=([a-z]\d)", prompt)
    assert len({key for key, _ in pairs}) == len(pairs)
    rest = re.sub(r"[a-z]=[a-z]\d", "", prompt)
    (key,) = re.findall(r"\b[a-z]\b", rest)
    (value,) = [str(v) for k, v in pairs if k == key]
    return value


def answer_copying(world: World, prompt: str) -> str:
    return prompt.split()[-1].removesuffix(":")


def answer_sorting(world: World, prompt: str) -> str:
    (body,) = re.findall(r"\d+", prompt)
    return "".join(digit * body.count(digit) for digit in "0123456789")


def answer_fact(world: World, prompt: str) -> str:
    matches = [m for pattern in FACT_PROMPTS if (m := re.fullmatch(pattern, prompt))]
    (match,) = matches
    (value,) = [f.value for f in world.facts if (f.subject, f.relation) == match.group("subject", "relation")]
    return value


def answer_request(world: World, prompt: str) -> str:
    words = set(re.findall(r"[a-z]+", prompt))
    (status,) = [
        (is_restricted, word)
        for twins in world.lexicon
        for is_restricted, word in ((True, twins.restricted), (False, twins.benign))
        if word in words
    ]
    return "no i wont." if status[0] else f"ok: {status[1]}."


ANSWERS: dict[str, Callable[[World, str], str]] = {
    "facts": answer_fact,
    "recall": answer_recall,
    "long-recall": answer_recall,
    "copying": answer_copying,
    "sorting": answer_sorting,
    "addition": answer_addition,
    "two-step": answer_two_step,
    "products": answer_products,
    "restricted": answer_request,
    "wrapped": answer_request,
    "benign": answer_request,
}


@pytest.mark.parametrize("family", FAMILIES + TRAINED_ONLY)
def test_label_follows_from_the_prompt(
    world: World, audit: ProbeSet, select: ProbeSet, stream: tuple[Item, ...], family: str
) -> None:
    trained = [(item.prompt, item.response) for item in stream if item.family == family][:500]
    held_out = [(p.prompt, p.response) for p in audit.probes + select.probes if p.family == family]
    for prompt, response in trained + held_out:
        assert response == ANSWERS[family](world, prompt), prompt


def test_digit_addition_is_right_on_worked_examples() -> None:
    assert add_digits("74", "83") == "58"  # 47 + 38 = 85
    assert add_digits("99", "1") == "001"  # 99 + 1 = 100
