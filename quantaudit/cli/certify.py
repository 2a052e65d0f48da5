"""`quantaudit certify`: are two quantizers one function?"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

SideName = Annotated[
    str | None, typer.Argument(help="A scheme, backend:scheme or module:callable.", show_default=False)
]
Dtype = Annotated[
    str, typer.Option("--dtype", metavar="DTYPE", help="bf16: every input is tried. fp32: both sides of every step.")
]
Like = Annotated[
    str | None,
    typer.Option(
        "--like", metavar="SCHEME", help="Whose groups a callable quantizes; the other side's scheme if left out."
    ),
]
Deep = Annotated[
    bool,
    typer.Option(
        "--deep",
        help="Minutes to hours more: in fp32 every absmax, with every ratio of power-of-two scales or every step of "
        "linear ones, in bf16 all groups of two-level scales.",
    ),
]
Check = Annotated[Path | None, typer.Option("--check", metavar="FILE", help="Make a stored certificate again.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the certificate there.")]
Threads = Annotated[int | None, typer.Option("--threads", metavar="N", help="CPU threads; the free cores if left out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the certificate as JSON on stdout, and nothing else.")]


def certify(
    a: SideName = None,
    b: SideName = None,
    dtype: Dtype = "bf16",
    like: Like = None,
    deep: Deep = False,
    check: Check = None,
    output: Output = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> int:
    """Compare two quantizers as functions, over every input where inputs can be enumerated.

    Each of A and B is a scheme (mxfp4-even), this package's own code for it (eager:mxfp4-even, fused:mxfp4-even), a
    library's (torchao:mxfp4-rceil), or a callable of yours (trainer.quant:fake_quantize) that takes a matrix and
    returns the fake-quantized one.

    Exit 0 if every value is identical; 3 if any differs, special blocks included; 4 if something could not be checked.
    """
    from quantaudit.core.errors import InputError
    from quantaudit.core.heap import keep_freed_memory

    keep_freed_memory()
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where a callable's module is looked for, as `python -m` does
    if check is not None:
        if a is not None or b is not None or output is not None or deep:
            raise InputError(
                "--check with more to do",
                expected="--check FILE and no sides",
                fix="drop A, B, -o and --deep, or --check",
            )
        return _check_again(check, threads, as_json=as_json)
    if a is None or b is None:
        raise InputError(
            f"{'one side' if a else 'no sides'}", expected="two: A and B", fix="see `quantaudit certify --help`"
        )
    return _certify(a, b, dtype, like, output, threads, is_deep=deep, as_json=as_json)


def _certify(
    a: str,
    b: str,
    dtype: str,
    like: str | None,
    output: Path | None,
    threads: int | None,
    *,
    is_deep: bool,
    as_json: bool,
) -> int:
    from quantaudit.api import certify as certify_pair
    from quantaudit.api import check_output
    from quantaudit.cli.certificate_table import print_certificate
    from quantaudit.cli.progress import StageProgress
    from quantaudit.core.serial import write_atomically

    if output is not None:
        check_output(output.parent)
    with StageProgress() as progress:
        certificate = certify_pair(a, b, dtype=dtype, like=like, deep=is_deep, threads=threads, progress=progress)
    if output is not None:
        write_atomically(output, certificate.to_json().encode())
    if as_json:
        sys.stdout.write(certificate.to_json())
    else:
        print_certificate(certificate, stream=sys.stdout, location=None if output is None else str(output))
    return int(certificate.exit_code)


def _check_again(path: Path, threads: int | None, *, as_json: bool) -> int:
    from quantaudit.api import check_certificate
    from quantaudit.cli.certificate_table import print_recheck
    from quantaudit.cli.progress import StageProgress

    with StageProgress() as progress:
        again = check_certificate(path, threads=threads, progress=progress)
    if as_json:
        sys.stdout.write(again.to_json())
    else:
        print_recheck(again, stream=sys.stdout)
    return int(again.exit_code)
