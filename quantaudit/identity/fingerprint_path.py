"""`fingerprint`: from a path and options to a manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from quantaudit.core.errors import InputError
from quantaudit.core.manifest import DecodedTo, Manifest
from quantaudit.core.resources import embedded_model_folder
from quantaudit.identity.fingerprint import Request, fingerprint_side
from quantaudit.identity.layouts.logical import keep_matching
from quantaudit.identity.layouts.opening import open_side
from quantaudit.identity.threads import use_threads
from quantaudit.numerics import get_scheme

Progress = Callable[[str, int, int], None]


def fingerprint(
    checkpoint: str | Path | None = None,
    *,
    scheme: str | None = None,
    decode: str = DecodedTo.BFLOAT16,
    match: str | None = None,
    experts: bool | None = None,
    cryptographic: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Fingerprints a checkpoint.

    Args:
        checkpoint: Folder, `.safetensors` or `.gguf` file; the embedded model when `None`.
        scheme: Quantizes routed experts that are stored unquantized before they are digested.
        decode: Dtype that packed codes are decoded to: "bfloat16" or "float32".
        match: Shell-style pattern of logical names; all tensors when `None`.
        experts: Whether single experts get digests; up to 4096 matrices when `None`.
        cryptographic: Whether blake3 goes over the stored bytes too.
        threads: CPU threads; the free cores when `None`.
        progress: Told (stage, done, total).

    Raises:
        InputError: If an input is wrong, or a tensor is quantized in another format than that of the scheme.
        NotMeasuredError: If there is nothing to fingerprint.
    """
    if decode not in set(DecodedTo):
        raise InputError(f"--decode {decode}", expected=" or ".join(DecodedTo), fix="correct --decode")
    request = Request(
        scheme=None if scheme is None else get_scheme(scheme),
        decoded_to=DecodedTo(decode),
        match=match,
        experts=experts,
        is_cryptographic=cryptographic,
    )
    use_threads(threads)
    side = open_side(embedded_model_folder() if checkpoint is None else Path(checkpoint))
    return fingerprint_side(keep_matching(side, match), request, progress or _silent)


def _silent(stage: str, done: int, total: int) -> None:
    """Ignores progress."""
