"""`compare`: from two paths, each of a checkpoint, a safetensors or gguf file or a manifest, to what differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from quantaudit.checkpoint.file_range import read_whole
from quantaudit.core.comparison import Comparison, Mode, is_equal
from quantaudit.core.errors import InputError
from quantaudit.core.manifest import Manifest, parse_manifest
from quantaudit.identity.compare import compare_sides
from quantaudit.identity.compare_explain import SearchExplainer
from quantaudit.identity.compare_manifests import compare_manifests
from quantaudit.identity.compare_master import diagnose_from_master
from quantaudit.identity.fingerprint import Request, fingerprint_side
from quantaudit.identity.identify_paths import identify
from quantaudit.identity.layouts.logical import keep_matching
from quantaudit.identity.layouts.opening import open_side
from quantaudit.identity.threads import use_threads
from quantaudit.numerics import get_scheme

MANIFEST_SUFFIX = ".json"
_MAX_MANIFEST_BYTES = 1 << 28

Progress = Callable[[str, int, int], None]


def compare(
    a: str | Path,
    b: str | Path,
    *,
    by_bytes: bool = False,
    match: str | None = None,
    master: str | Path | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compares two checkpoints tensor by tensor, whatever their layouts.

    Args:
        a: Checkpoint folder, `.safetensors` or `.gguf` file, or manifest (`.json`) of the first side.
        b: The same for the second. If one side is a manifest, the other is fingerprinted as it was.
        by_bytes: Whether another encoding of equal values is a difference too.
        match: Shell-style pattern of logical names, such as "*experts*"; all tensors when `None`.
        master: Unquantized weights of both, from which the rules of two quantized sides are found and compared.
        threads: CPU threads; the free cores when `None`.
        progress: Told (stage, done, total).

    Returns:
        The comparison; its `identical` is the answer, `classes` says what every tensor comes to.

    Raises:
        InputError: If a path is wrong, a file is damaged, or two manifests were taken in different ways.
        NotMeasuredError: If no tensor is on both sides.
    """
    use_threads(threads)
    left, right = Path(a), Path(b)
    mode, tell = Mode.BYTES if by_bytes else Mode.VALUES, progress or _silent
    if master is not None and MANIFEST_SUFFIX in (left.suffix, right.suffix):
        raise InputError("a master beside a manifest", expected="weights on both sides", fix="leave out --master")
    if MANIFEST_SUFFIX not in (left.suffix, right.suffix):
        sides = keep_matching(open_side(left), match), keep_matching(open_side(right), match)
        explain = SearchExplainer() if master is None else None
        found = compare_sides(*sides, mode=mode, explain=explain, progress=tell)
        if master is not None:
            found = _with_rules(found, Path(master), match, threads, tell)
    else:
        found = _compare_manifests(left, right, match, mode, tell)
    if left.exists() and right.exists() and left.samefile(right):
        return found.model_copy(update={"notes": ("both sides are one path, so nothing else could be found",)})
    return found


def _with_rules(
    found: Comparison, master: Path, match: str | None, threads: int | None, progress: Progress
) -> Comparison:
    """Returns a comparison with what made either side from one master as its diagnosis."""
    unequal = [t.name for t in found.tensors if not is_equal(t.tensor_class, found.mode)]
    if not unequal:
        return found
    a, b = (
        identify(side.path, master=master, match=match, threads=threads, progress=progress)
        for side in (found.a, found.b)
    )
    return found.model_copy(update={"diagnosis": diagnose_from_master(a, b, unequal)})


def _compare_manifests(left: Path, right: Path, match: str | None, mode: Mode, progress: Progress) -> Comparison:
    if match is not None:
        raise InputError(
            f"the pattern {match!r} beside a manifest",
            expected="--match where both sides are weights; a manifest has the pattern it was made with",
            fix="make the manifest with --match",
        )
    known = {path: _read_manifest(path) for path in (left, right) if path.suffix == MANIFEST_SUFFIX}
    model = next(iter(known.values()))
    made = {path: known.get(path) or _fingerprint_like(path, model, progress) for path in (left, right)}
    return compare_manifests(made[left], made[right], a_path=str(left), b_path=str(right), mode=mode)


def _read_manifest(path: Path) -> Manifest:
    data = read_whole(path, _MAX_MANIFEST_BYTES)
    try:
        return parse_manifest(data.decode(), path)
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8", expected="a manifest", fix="check the path") from None


def _fingerprint_like(path: Path, model: Manifest, progress: Progress) -> Manifest:
    """Fingerprints weights in the way in which a manifest was made."""
    request = Request(
        scheme=None if model.scheme is None else get_scheme(model.scheme),
        decoded_to=model.decoded_to,
        match=model.match,
        experts=bool(model.expert_roots),
        is_cryptographic=any(tensor.blake3 is not None for tensor in model.tensors),
    )
    return fingerprint_side(keep_matching(open_side(path), model.match), request, progress)


def _silent(stage: str, done: int, total: int) -> None:
    """Ignores progress."""
