"""The table in markdown: how many certificates came to what, and a line for each, backend by backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from benchmarks.certificates.table import Certificates, Row, Special
from quantaudit.core.certificate import Conclusion, Counterexample, Differing, Level, Number, RuleDifference
from quantaudit.identity.separating import DOES_NOT, STATED

LEVELS = {
    Level.COMPLETE: "every finite statistic with every value of at most its magnitude, both signs and both zeros",
    Level.FACTORED: "every statistic with its scale, then every value under every scale",
    Level.BOUNDARY: "both sides of every step of the code, under the statistics at which a scale can change and some "
    "others; a proof where scales are powers of two, and for others only with `--deep`",
    Level.CONDITIONAL: "whole matrices, a sample",
    Level.DECODE_ONLY: "every code under every scale; the quantizer does not encode",
}
_MOST_RULES = 2
SPECIAL_RULE = "special blocks"
_FEW = 6  # names that a line lists
_DOMAINS = {"bf16": "bf16 weights", "fp32": "fp32 weights"}


def render_markdown(table: Certificates) -> str:
    """Returns the markdown file."""
    parts = [
        "# Certificates of quantizers",
        "",
        summarize(table),
        "",
        "Each line is one certificate: a quantizer held against a scheme of the catalogue, as functions. Counts are "
        "inputs that differ in scales / codes / values; a dash stands for what a side does not show. `special` blocks "
        "are zero, subnormal, saturating, infinite, NaN, or cut off at the edge of a matrix. A rule is the scheme's, "
        "then the quantizer's. The premises that make an enumeration a proof (a group's result depends on its own "
        "values alone, and a value's on the statistic and itself) are tested on structured groups, not proved.",
        "",
        *(f"- {level.value}: {meaning}." for level, meaning in LEVELS.items() if _has(table, level)),
        "",
        "To make one again: `quantaudit certify SCHEME QUANTIZER --dtype DTYPE`, with `--deep` where the level says "
        "so. Seconds are of one processor, shared with other work.",
        "",
        *_tables(table),
        *_examples(table),
        "## Not there",
        "",
        *_missing(table),
        "",
        f"Made by `{table.command}` ({table.machine}; {', '.join(f'{n} {v}' for n, v in table.versions.items())}).",
    ]
    return "\n".join(parts) + "\n"


def summarize(table: Certificates) -> str:
    """Returns how many certificates came to what."""
    sentences = []
    for dtype, words in _DOMAINS.items():
        rows = [row for row in table.rows if row.dtype == dtype]
        counted = Counter(row.conclusion for row in rows)
        if rows:
            found = ", ".join(f"{counted[one]} {one.value}" for one in Conclusion if counted[one])
            sentences.append(f"{len(rows)} certificates over {words}: {found}.")
    return " ".join([*sentences, f"{len(table.missing)} are not there."])


def _has(table: Certificates, level: Level) -> bool:
    return any(row.level is level for row in table.rows)


def _tables(table: Certificates) -> Iterator[str]:
    for dtype, words in _DOMAINS.items():
        rows = [row for row in table.rows if row.dtype == dtype]
        for backend, own in groupby(rows, key=lambda row: row.quantizer.partition(":")[0]):
            group = list(own)
            restated = ", restated" if group[0].origin == "restated" else ""
            yield from (f"## {backend} {group[0].version}, {words}{restated}", "")
            yield "| quantizer | scheme | level | inputs | conclusion | ordinary | special | rule | seconds |"
            yield "|---|---|---|---:|---|---:|---|---|---:|"
            yield from (_line(row) for row in group)
            yield ""


def _line(row: Row) -> str:
    cells = [
        row.quantizer.partition(":")[2],
        row.scheme,
        row.level.value + (", deep" if row.deep else ""),
        f"{row.num_pairs:,}",
        _conclusion(row),
        _counts(row.differing),
        "; ".join(_special(one) for one in row.special) or "0",
        _rules(row),
        f"{row.seconds:,.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def _conclusion(row: Row) -> str:
    words = f"**{row.conclusion.value}**" if row.conclusion is Conclusion.DIFFERENT else row.conclusion.value
    if row.conclusion is Conclusion.EXCEPT_SPECIAL and row.unproved:
        words += " (ordinary ones not proved)"
    return words + "".join(f"; fails: {premise}" for premise in row.failed)


def _special(one: Special) -> str:
    return f"{one.kind} {_counts(one.differing)}"


def _rules(row: Row) -> str:
    rules = [rule for rule in row.rules if not rule.field.startswith(SPECIAL_RULE)]  # those are in the column before
    words = [_rule(rule) for rule in rules[:_MOST_RULES]]
    more = len(rules) - _MOST_RULES
    text = "; ".join([*words, *([f"and {more} more"] if more > 0 else [])])
    return text.replace("|", "\\|")


def _rule(rule: RuleDifference) -> str:
    """Returns a field with both values, or the sentence of the side that states its departure."""
    if rule.field == STATED:
        return rule.a_value if rule.b_value == DOES_NOT else rule.b_value
    return f"{rule.field}: {rule.a_value} / {rule.b_value}"


def _counts(differing: Differing) -> str:
    parts = (differing.scales, differing.codes, differing.values)
    if not any(parts):
        return "0"
    return " / ".join("-" if part is None else f"{part:,}" for part in parts)


def _examples(table: Certificates) -> Iterator[str]:
    """Yields the first input on which the sides part, where values do."""
    rows = [row for row in table.rows if row.first is not None and row.first.part == "values"]
    if not rows:
        return
    yield from ("## Where they part first", "")
    yield "| quantizer | dtype | value | in a group of absmax | becomes by the scheme | by the quantizer |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        assert row.first is not None
        yield f"| {row.quantizer} | {row.dtype} | " + " | ".join(_example(row.first)) + " |"
    yield ""


def _example(first: Counterexample) -> tuple[str, ...]:
    above = "" if first.matrix_absmax is None else f", in a matrix of {_number(first.matrix_absmax)}"
    return (
        _number(first.value),
        _number(first.statistic) + above,
        _outcome(first.a_value, first.a_code, first.a_scale),
        _outcome(first.b_value, first.b_code, first.b_scale),
    )


def _outcome(value: Number, code: int | None, scale: Number | None) -> str:
    words = [_number(value)]
    words += [] if code is None else [f"code {code}"]
    words += [] if scale is None else [f"scale {scale.value:.9g}"]
    return ", ".join(words)


def _number(number: Number) -> str:
    return f"{number.value:.9g} `{number.bits}`"


def _missing(table: Certificates) -> Iterator[str]:
    """Yields what is missing: how many of a backend, and which if they are few."""
    key = [(one.reason, one.dtype, *one.quantizer.partition(":")[::2]) for one in table.missing]
    for reason, dtype, backend in dict.fromkeys(one[:3] for one in key):
        names = [one[3] for one in key if one[:3] == (reason, dtype, backend)]
        listed = ", ".join(names) if len(names) <= _FEW else f"{', '.join(names[:_FEW])} and {len(names) - _FEW} more"
        yield f"- {backend}, {dtype}, {reason}: {listed}"
    if not key:
        yield "Nothing."
