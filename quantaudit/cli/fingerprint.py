"""`quantaudit fingerprint`: a manifest whose equality means equal quantized values."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

Checkpoint = Annotated[
    str | None,
    typer.Argument(metavar="CKPT", help="Folder, .safetensors or .gguf file; the embedded model if left out."),
]
SchemeName = Annotated[
    str | None,
    typer.Option("--scheme", metavar="S", help="Quantize routed experts that are not, before they are digested."),
]
Decode = Annotated[str, typer.Option("--decode", metavar="DTYPE", help="Decode packed codes to bfloat16 or float32.")]
Match = Annotated[
    str | None, typer.Option("--match", metavar="PATTERN", help="Only these logical names, such as '*experts*'.")
]
Experts = Annotated[
    bool | None,
    typer.Option("--experts/--no-experts", help="Digest every expert too; if left out, up to 4096 matrices."),
]
Cryptographic = Annotated[bool, typer.Option("--cryptographic", help="blake3 over the stored bytes, too.")]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the manifest there (.json).")
]
Threads = Annotated[int | None, typer.Option("--threads", metavar="N", help="CPU threads; the free cores if left out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the manifest as JSON on stdout, and nothing else.")]


def fingerprint(
    checkpoint: Checkpoint = None,
    scheme: SchemeName = None,
    decode: Decode = "bfloat16",
    match: Match = None,
    experts: Experts = None,
    cryptographic: Cryptographic = False,
    output: Output = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Fingerprint a checkpoint: equal manifests mean equal quantized values, however they are packed or sharded.

    `quantaudit compare` finds the tensors and experts in which two manifests differ, without the weights. Digests find
    accidents, not attacks; --cryptographic adds a hash of the stored bytes.
    """
    from quantaudit.api import check_output
    from quantaudit.api import fingerprint as fingerprint_checkpoint
    from quantaudit.cli.progress import StageProgress
    from quantaudit.core.errors import InputError
    from quantaudit.core.serial import write_atomically

    if output is not None:
        if output.suffix != ".json":
            raise InputError(f"-o {output}", expected="a file that ends in .json", fix="compare knows manifests by it")
        check_output(output.parent)
    with StageProgress() as progress:
        manifest = fingerprint_checkpoint(
            checkpoint,
            scheme=scheme,
            decode=decode,
            match=match,
            experts=experts,
            cryptographic=cryptographic,
            threads=threads,
            progress=progress,
        )
    if output is not None:
        write_atomically(output, manifest.to_json().encode())
    if as_json:
        sys.stdout.write(manifest.to_json())
        return
    how = "as stored" if manifest.scheme is None else f"experts in {manifest.scheme}"
    sys.stdout.write(f"{len(manifest.tensors):,} tensors, {how}, codes decoded to {manifest.decoded_to}\n")
    sys.stdout.write(f"values  {manifest.values_root}\nbytes   {manifest.bytes_root}\n")
    if output is not None:
        sys.stdout.write(f"written to {output}\n")
