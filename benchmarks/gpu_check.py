"""Checks on a CUDA machine, in under five minutes, that the device changes neither a bit of a quantizer nor a verdict.

    python benchmarks/gpu_check.py [--probes 60] [--fused-seconds 120] [-o benchmarks/results/gpu_check.json]

Three parts: every scheme's codes, scales and decoded values on the GPU against those of the CPU, bit for bit, on
structured and on random matrices in fp32 and bf16, and fused quantization run eagerly, all with partial blocks too; the
twins compiled, the hot schemes first, for as long as compiling may take; and paired audits of the embedded model, gate
by gate. Throughput is printed beside. Every NaN counts as one number, since devices write NaN with different payloads;
-0 is not +0.

Exit codes: 0 all equal, 3 something differs, 4 no CUDA device here or something was not reached.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from quantaudit.composition import Order, Settings, carry_out, open_checkpoint
from quantaudit.core.probe import Split
from quantaudit.core.recipe_file import load_contract, load_recipe
from quantaudit.core.report import AuditReport
from quantaudit.core.resources import embedded_model_folder
from quantaudit.core.scheme import PerBlock, Scheme
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.core.verdict import ExitCode
from quantaudit.numerics import dequantize, fake_quantize, fused_fake_quantize, get_scheme, quantize, scheme_names
from quantaudit.numerics.compiler import why_eager
from quantaudit.numerics.twins import has_twin
from quantaudit.probes.world import default_probes

ROWS, COLUMNS = 200, 384  # every group size divides 384
WHOLE, PARTIAL = (128, 384), (200, 300)  # for blocks of 128 x 128: whole ones only, and partial ones at both edges
DTYPES = (torch.float32, torch.bfloat16)
HOT = ("mxfp4-even", "mxfp8-e4m3-even", "int4-g32-div7.5", "fp8-block128", "mxfp4-floor", "mxfp4-rceil")
NEVER = 1 << 62
RECIPES = ("identity", "k3-w4a8", "int2")
THROUGHPUT_SIZE, THROUGHPUT_ROUNDS = 4096, 20


class SchemeCheck(Frozen):
    """One scheme on one dtype.

    Attributes:
        path: "reference", "twin" (the fused arithmetic, run eagerly) or "compiled".
        difference: The first difference in words; `None` where all bits are equal.
    """

    scheme: str
    dtype: str
    path: str
    difference: str | None


class AuditCheck(Frozen):
    """One audit on both devices.

    Attributes:
        seconds: Of the forwards, CPU then GPU.
        differing_gates: Gates whose outcome is not the same.
        largest_difference: Largest difference of a gate's mean between the devices, in that gate's unit.
    """

    recipe: str
    cpu_verdict: str
    gpu_verdict: str
    differing_gates: tuple[str, ...]
    largest_difference: float
    seconds: tuple[float, float]


class Throughput(Frozen):
    """Fake quantization of a 4096 x 4096 fp32 matrix on the GPU, and its speed as a fraction of a copy's."""

    scheme: str
    path: str
    seconds: float
    ratio: float


class GpuCheck(Frozen):
    """The whole run."""

    schema_version: int = 1
    device: str
    torch_version: str
    schemes: tuple[SchemeCheck, ...]
    not_reached: tuple[str, ...]
    audits: tuple[AuditCheck, ...]
    throughput: tuple[Throughput, ...]
    seconds: float

    def exit_code(self) -> ExitCode:
        """Returns what the process ends with."""
        if any(c.difference for c in self.schemes) or any(_differs(a) for a in self.audits):
            return ExitCode.REJECTED
        return ExitCode.INCONCLUSIVE if self.not_reached else ExitCode.PASS


def structured_matrix() -> Tensor:
    """Returns `[ROWS, COLUMNS]` fp32: rows of what random data hides, in the first half; wide random rows below."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, COLUMNS, generator=generator)
    sign = torch.tensor([1.0, -1.0]).repeat(COLUMNS // 2)
    fp4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]).repeat(COLUMNS // 8)
    ties = torch.tensor([6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]).repeat(COLUMNS // 8)
    halves = (torch.arange(COLUMNS) % 32 - 15.5) / 2
    integers = torch.arange(COLUMNS) % 16 - 8.0
    for row, values in enumerate((ties * sign, ties * 2.0**-20, halves, halves / 7, fp4 * 0.125, integers * 0.25)):
        x[row] = values
    x[6], x[7, ::3], x[8, 1:] = 0.0, -0.0, 0.0
    for row, exponent in enumerate((-124, -127, -136, -147, 100, 126), start=10):
        x[row] *= 2.0**exponent
    largest = torch.finfo(torch.bfloat16).max
    x[16, ::32], x[16, 1::64] = largest, -largest
    for row, peak in enumerate((6.0, 7.0, 7.5, 448.0, 464.0, 480.0), start=20):
        x[row, ::32], x[row, 7::32] = peak, -math.nextafter(peak, 0.0) * (1 - 2.0**-8)
    x[ROWS // 2 :] *= torch.exp2(torch.randint(-60, 60, (ROWS // 2, COLUMNS), generator=generator).float())
    return x


def spoiled_matrix() -> Tensor:
    """Returns `[ROWS, COLUMNS]` fp32 with an infinity, a NaN, and both in one group."""
    x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))
    x[1, 40], x[70, 200], x[140, 3], x[140, 4] = -math.inf, math.nan, math.inf, math.nan
    return x


def random_matrix() -> Tensor:
    """Returns `[ROWS, COLUMNS]` fp32 with the spread of weights."""
    return 0.02 * torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(2))


MATRICES: dict[str, Callable[[], Tensor]] = {
    "structured": structured_matrix,
    "spoiled": spoiled_matrix,
    "random": random_matrix,
}


def matrices_for(scheme: Scheme, dtype: torch.dtype, shape: tuple[int, int]) -> dict[str, Tensor]:
    """Returns all matrices cut to a shape; only blocks may be partial, groups keep all columns."""
    rows, columns = shape if isinstance(scheme.granularity, PerBlock) else (shape[0], COLUMNS)
    return {name: make()[:rows, :columns].to(dtype).contiguous() for name, make in MATRICES.items()}


def first_difference(what: str, actual: Tensor | None, expected: Tensor | None) -> str | None:
    """Returns the first difference between two tensors with both values and bit patterns, or `None`."""
    if actual is None or expected is None:
        return None if actual is expected else f"{what} is missing on one side"
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return f"{what} is {actual.dtype} {list(actual.shape)}, not {expected.dtype} {list(expected.shape)}"
    left, right = _bits(actual), _bits(expected)
    where = (left != right).nonzero()
    if not len(where):
        return None
    at = tuple(where[0].tolist())
    values = f"{float(actual.cpu()[at])!r}, not {float(expected.cpu()[at])!r}"
    patterns = f"{int(left[at]) & 0xFFFFFFFF:#010x} and {int(right[at]) & 0xFFFFFFFF:#010x}"
    return f"{what} at {list(at)} is {values} (bits {patterns}); {len(where)} values differ"


def _bits(values: Tensor) -> Tensor:
    values = values.detach().cpu()
    if not values.is_floating_point():
        return values.to(torch.int32)
    wide = values.to(torch.float32)
    return torch.where(wide.isnan(), torch.nan, wide).view(torch.int32)


def check_reference(scheme: Scheme, dtype: torch.dtype, device: torch.device) -> SchemeCheck:
    """Compares codes, scales and decoded values of one scheme on a device with those of the CPU."""
    difference = None
    for name, x in matrices_for(scheme, dtype, PARTIAL).items():
        ours, theirs = quantize(x.to(device), scheme), quantize(x, scheme)
        pairs = {
            "the code": (ours.codes, theirs.codes),
            "the scale": (ours.scales, theirs.scales),
            "the second scale": (ours.second_scales, theirs.second_scales),
            "the offset": (ours.offset, theirs.offset),
            "the value": (dequantize(ours), dequantize(theirs)),
        }
        found = (first_difference(f"{name} matrix: {what}", *pair) for what, pair in pairs.items())
        difference = difference or next(filter(None, found), None)
    return SchemeCheck(scheme=scheme.name, dtype=_short(dtype), path="reference", difference=difference)


def check_twin(scheme: Scheme, dtype: torch.dtype, device: torch.device, *, compiled: bool) -> SchemeCheck:
    """Compares fused quantization on a device, eager or compiled, with the reference on the CPU."""
    difference = None
    for shape in (WHOLE,) if compiled else (WHOLE, PARTIAL):
        for name, x in matrices_for(scheme, dtype, shape).items():
            actual = fused_fake_quantize(x.to(device), scheme, compile_after=0 if compiled else NEVER)
            what = f"{name} matrix of {list(x.shape)}: the value"
            difference = difference or first_difference(what, actual, fake_quantize(x, scheme))
    path = "compiled" if compiled else "twin"
    return SchemeCheck(scheme=scheme.name, dtype=_short(dtype), path=path, difference=difference)


def check_compiled(device: torch.device, seconds: float) -> tuple[list[SchemeCheck], list[str]]:
    """Checks compiled twins, hot ones first, until the time is over; returns the checks and what was not reached."""
    names = [*HOT, *(n for n in scheme_names() if n not in HOT and has_twin(get_scheme(n)))]
    work = [(name, dtype) for dtype in DTYPES for name in names]
    checks: list[SchemeCheck] = []
    deadline = time.monotonic() + seconds
    while work and time.monotonic() < deadline:
        name, dtype = work[0]
        check = check_twin(get_scheme(name), dtype, device, compiled=True)
        if why_eager(device.type) is not None:  # the reference stood in for it, so nothing compiled was checked
            break
        checks.append(check)
        work.pop(0)
        print(f"  compiled {name} {_short(dtype)}: {check.difference or 'equal'}", file=sys.stderr)
    reason = why_eager(device.type) or "the time for compiling was over"
    return checks, [f"compiled {name} {_short(dtype)}: {reason}" for name, dtype in work]


def check_audit(recipe: str, device: str, probes_a_family: int, threads: int) -> AuditCheck:
    """Runs one audit of the embedded model on the CPU and on a device, and compares every gate."""
    began = time.monotonic()
    cpu = run_audit_on("cpu", recipe, probes_a_family, threads)
    middle = time.monotonic()
    gpu = run_audit_on(device, recipe, probes_a_family, threads)
    end = time.monotonic()
    pairs = list(zip(cpu.gates(), gpu.gates(), strict=True))
    means = [abs((a.lo or 0.0) - (b.lo or 0.0)) for a, b in pairs]
    return AuditCheck(
        recipe=recipe,
        cpu_verdict=cpu.verdict.admission.value,
        gpu_verdict=gpu.verdict.admission.value,
        differing_gates=tuple(a.name for a, b in pairs if a.decision.outcome is not b.decision.outcome),
        largest_difference=max(means, default=0.0),
        seconds=(middle - began, end - middle),
    )


def run_audit_on(device: str, recipe: str, probes_a_family: int, threads: int) -> AuditReport:
    """Audits the embedded model under a recipe; the contract asks for no more probes than there are."""
    contract = load_contract("default").model_copy(update={"min_probes": probes_a_family, "min_clusters": 5})
    checkpoint = open_checkpoint(embedded_model_folder())
    order = Order(
        hi=checkpoint,
        hi_source="embedded model",
        lo=None,
        lo_source=None,
        recipe=load_recipe(recipe),
        contract=contract,
        probes=default_probes(Split.SELECT, probes_a_family),
        device=device,
        threads=threads,
        settings=Settings(),
        command="benchmarks/gpu_check.py",
    )
    return carry_out(order, lambda stage, done, total: None)


def measure_throughput(device: torch.device, names: Iterable[str]) -> list[Throughput]:
    """Times the reference and the compiled twins against a copy, interleaved; minima."""
    x = torch.randn(THROUGHPUT_SIZE, THROUGHPUT_SIZE, device=device)
    out = torch.empty_like(x)
    actions: dict[tuple[str, str], Callable[[], object]] = {("copy", "copy"): lambda: out.copy_(x)}
    for name in names:
        scheme = get_scheme(name)
        actions[name, "reference"] = partial(fake_quantize, x, scheme)
        actions[name, "compiled"] = partial(fused_fake_quantize, x, scheme, out, compile_after=0)
    least = dict.fromkeys(actions, math.inf)
    for action in actions.values():
        action()  # compiles and allocates
    for _ in range(THROUGHPUT_ROUNDS):
        for key, action in actions.items():
            least[key] = min(least[key], _seconds(action, device))
    copy = least.pop(("copy", "copy"))
    return [Throughput(scheme=n, path=p, seconds=s, ratio=copy / s) for (n, p), s in least.items()]


def _seconds(action: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    began = time.perf_counter()
    action()
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _differs(check: AuditCheck) -> bool:
    return check.cpu_verdict != check.gpu_verdict or bool(check.differing_gates)


def check_device(device: torch.device, *, probes_a_family: int, fused_seconds: float, threads: int) -> GpuCheck:
    """Runs all parts and returns what they found."""
    began = time.monotonic()
    checks = [check_reference(get_scheme(n), dtype, device) for n in scheme_names() for dtype in DTYPES]
    with_twin = [scheme for scheme in map(get_scheme, scheme_names()) if has_twin(scheme)]
    checks += [check_twin(scheme, dtype, device, compiled=False) for scheme in with_twin for dtype in DTYPES]
    print(f"eager: {sum(c.difference is None for c in checks)} of {len(checks)} equal", file=sys.stderr)
    compiled, not_reached = check_compiled(device, fused_seconds)
    audits = [check_audit(recipe, device.type, probes_a_family, threads) for recipe in RECIPES]
    throughput = measure_throughput(device, HOT[:4])
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return GpuCheck(
        device=name,
        torch_version=torch.__version__,
        schemes=(*checks, *compiled),
        not_reached=tuple(not_reached),
        audits=tuple(audits),
        throughput=tuple(throughput),
        seconds=time.monotonic() - began,
    )


def print_result(result: GpuCheck) -> None:
    """Prints the differences, the audits, the throughput, and one closing sentence."""
    for check in result.schemes:
        if check.difference is not None:
            print(f"DIFFERENT {check.scheme} {check.dtype} {check.path}: {check.difference}")
    for audit in result.audits:
        same = "DIFFERENT" if _differs(audit) else "same"
        gates = f" ({', '.join(audit.differing_gates)})" if audit.differing_gates else ""
        print(
            f"audit {audit.recipe}: {audit.cpu_verdict} on the CPU in {audit.seconds[0]:.1f} s, "
            f"{audit.gpu_verdict} on the GPU in {audit.seconds[1]:.1f} s: {same}{gates}; "
            f"means differ by at most {audit.largest_difference:.2g}"
        )
    size = THROUGHPUT_SIZE**2 * 4 / 1e9
    for row in result.throughput:
        print(f"{row.scheme} {row.path}: {size / row.seconds:,.0f} GB/s read, {row.ratio:.2f} of a copy's speed")
    for item in result.not_reached:
        print(f"not reached: {item}")
    equal = sum(c.difference is None for c in result.schemes)
    print(f"{equal} of {len(result.schemes)} quantizers are bit-equal on {result.device}; {result.seconds:.0f} s")


def main(arguments: list[str] | None = None) -> int:
    """Checks the CUDA device, prints and writes the result, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--probes", type=int, default=60, help="probes a family in the audits")
    parser.add_argument("--fused-seconds", type=float, default=120.0, help="how long compiled twins are checked")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/gpu_check.json"))
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("gpu_check: torch finds no CUDA device on this machine, so nothing was checked.", file=sys.stderr)
        return int(ExitCode.INCONCLUSIVE)
    result = check_device(
        torch.device("cuda"),
        probes_a_family=given.probes,
        fused_seconds=given.fused_seconds,
        threads=given.threads,
    )
    print_result(result)
    write_atomically(given.output, result.to_json().encode())
    return int(result.exit_code())


if __name__ == "__main__":
    sys.exit(main())
