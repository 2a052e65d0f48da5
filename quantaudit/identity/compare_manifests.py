"""Compares two manifests: which tensors, and which experts of them, hold other values, without the weights."""

from __future__ import annotations

from quantaudit.core.comparison import Comparison, DifferingCounts, Mode, SideInfo, TensorClass, TensorComparison
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.core.manifest import Manifest, TensorDigest
from quantaudit.identity.compare import combine, missing

_SHOWN_EXPERTS = 8


def compare_manifests(a: Manifest, b: Manifest, *, a_path: str, b_path: str, mode: Mode) -> Comparison:
    """Compares two manifests.

    Raises:
        InputError: If they were taken in different ways, so that equal weights would have other digests.
        NotMeasuredError: If no tensor is in both.
    """
    _check_comparable(a, b, a_path, b_path)
    left, right = ({digest.name: digest for digest in manifest.tensors} for manifest in (a, b))
    if not left.keys() & right.keys():
        raise NotMeasuredError(f"no tensor is both in {a_path} and in {b_path}")
    tensors = tuple(_compare(name, left.get(name), right.get(name)) for name in sorted(left.keys() | right.keys()))
    return combine(_info(a, a_path), _info(b, b_path), tensors, mode)


def _check_comparable(a: Manifest, b: Manifest, a_path: str, b_path: str) -> None:
    if a.decoded_to is not b.decoded_to:
        raise InputError(
            f"{a_path} decodes to {a.decoded_to} and {b_path} to {b.decoded_to}",
            expected="two manifests that decode to one dtype",
            fix=f"fingerprint one of them again with --decode {b.decoded_to}",
        )
    if a.match != b.match:
        raise InputError(
            f"{a_path} covers {a.match or 'all names'} and {b_path} {b.match or 'all names'}",
            expected="two manifests of the same names",
            fix="fingerprint one of them again with the same --match",
        )


def _compare(name: str, a: TensorDigest | None, b: TensorDigest | None) -> TensorComparison:
    if a is None or b is None:
        only = a or b
        assert only is not None
        count = len(only.experts) or 1
        return missing(name, only.shape, count, a.storage if a else "", b.storage if b else "")
    found = _class_of(a, b)
    changed = [e for e, (x, y) in enumerate(zip(a.experts, b.experts, strict=False)) if x != y]
    is_different = found is not TensorClass.BYTE_EQUAL and found is not TensorClass.VALUE_EQUAL
    return TensorComparison(
        name=name,
        tensor_class=found,
        shape=a.shape,
        num_matrices=len(a.experts) or 1,
        num_different=len(changed) or int(is_different),
        a_encoding=a.storage,
        b_encoding=b.storage,
        differing=DifferingCounts(values=None if is_different else 0),
        note=_note(found, a, b, changed),
    )


def _class_of(a: TensorDigest, b: TensorDigest) -> TensorClass:
    if a.shape != b.shape:
        return TensorClass.DIFFERENT_SHAPE
    if a.values != b.values:
        return TensorClass.DIFFERENT_VALUES
    is_same = a.bytes == b.bytes and (a.blake3 is None or b.blake3 is None or a.blake3 == b.blake3)
    return TensorClass.BYTE_EQUAL if is_same else TensorClass.VALUE_EQUAL


def _note(found: TensorClass, a: TensorDigest, b: TensorDigest, changed: list[int]) -> str:
    if found is TensorClass.DIFFERENT_SHAPE:
        return f"{list(a.shape)} on the first side, {list(b.shape)} on the second"
    if not changed:
        return ""
    shown = ", ".join(map(str, changed[:_SHOWN_EXPERTS]))
    return f"experts {shown}{' and more' if len(changed) > _SHOWN_EXPERTS else ''}"


def _info(manifest: Manifest, path: str) -> SideInfo:
    return SideInfo(path=path, kind="manifest", num_tensors=len(manifest.tensors), num_bytes=0)
