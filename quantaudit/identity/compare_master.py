"""Two quantized sides and the master of both: what made each, and the fields in which the two rules differ.

Between two quantized sides a rule can only be guessed at. From the master each is identified by itself, exactly, so the
difference of the rules is the difference of the sides. Where one side carries a fault on top, that is what differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quantaudit.core.comparison import Diagnosis
from quantaudit.core.format import E4M3, E5M2
from quantaudit.core.identification import Identification, NamedMismatch, RuleFields, Standing, TensorIdentification
from quantaudit.identity.compare_rules import RULE
from quantaudit.identity.mismatches.protocol import Kind

# Fields of a rule, the ones that the others follow from first. Two number formats are no mismatch of any kind, but for
# flavours of FP8.
KINDS: dict[str, str] = {
    "element": RULE,
    "scale": Kind.SCALE_RULE,
    "scale_format": Kind.SCALE_RULE,
    "granularity": Kind.RANGE,
    "statistic": Kind.RANGE,
    "divisor": Kind.RANGE,
    "code_range": Kind.RANGE,
    "scale_arithmetic": Kind.ARITHMETIC,
    "scale_division": Kind.ARITHMETIC,
    "encode_with": Kind.ARITHMETIC,
    "arithmetic": Kind.ARITHMETIC,
    "division": Kind.ARITHMETIC,
    "tie": Kind.TIES,
    "floors": Kind.FLOORS,
}
RULES_DIFFER = "rules-differ"
_FP8 = frozenset({E4M3.name, E5M2.name})


def diagnose_from_master(a: Identification, b: Identification, unequal: Iterable[str]) -> tuple[Diagnosis, ...]:
    """Explains the tensors that differ by what made either side from one master.

    Args:
        a: What made the first side.
        b: What made the second.
        unequal: Logical names of what differs.
    """
    left, right = ({tensor.name: tensor for tensor in side.tensors} for side in (a, b))
    found: dict[tuple[str, ...], Diagnosis] = {}
    for name in unequal:
        for one in _diagnose(name, left.get(name), right.get(name)):
            key = (one.kind, one.mismatch, one.field, one.train, one.serve)
            before = found.get(key)
            if before is not None:
                least = min(one.explains, before.explains)
                one = one.model_copy(update={"tensors": (*before.tensors, name), "explains": least})
            found[key] = one
    return tuple(sorted(found.values(), key=lambda one: (-one.explains, one.kind)))


def _diagnose(name: str, a: TensorIdentification | None, b: TensorIdentification | None) -> Iterator[Diagnosis]:
    if a is None or b is None:  # unquantized on one side, which the comparison says by itself
        return
    if a.mismatch is not None:
        yield _fault(name, a.mismatch, train=a.mismatch.serve, serve=a.mismatch.train)
    if b.mismatch is not None:
        yield _fault(name, b.mismatch, train=b.mismatch.train, serve=b.mismatch.serve)
    if a.standing is not Standing.EXPLAINED or b.standing is not Standing.EXPLAINED or a.rule is None or b.rule is None:
        return
    fields = differing_fields(a.rule, b.rule)
    if fields:
        yield Diagnosis(
            kind=_kind(fields[0], a.rule, b.rule),
            mismatch=RULES_DIFFER,
            field=", ".join(fields),
            train=f"{a.scheme}: {', '.join(str(getattr(a.rule, field)) for field in fields)}",
            serve=f"{b.scheme}: {', '.join(str(getattr(b.rule, field)) for field in fields)}",
            explains=1.0,
            tensors=(name,),
        )


def differing_fields(a: RuleFields, b: RuleFields) -> list[str]:
    """Lists the fields in which two rules differ, in the order of `KINDS`."""
    return [field for field in KINDS if getattr(a, field) != getattr(b, field)]


def _kind(field: str, a: RuleFields, b: RuleFields) -> str:
    are_fp8 = field == "element" and {a.element, b.element} <= _FP8
    return Kind.FP8_FLAVOUR if are_fp8 else KINDS[field]


def _fault(name: str, named: NamedMismatch, *, train: str, serve: str) -> Diagnosis:
    return Diagnosis(
        kind=named.kind,
        mismatch=named.mismatch,
        field=named.field,
        train=train,
        serve=serve,
        explains=named.explains,
        tensors=(name,),
    )
