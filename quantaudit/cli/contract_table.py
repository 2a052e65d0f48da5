"""What probes can decide under a contract, as tables of at most 80 columns; gates of one kind share one."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence

from quantaudit.api import ContractCheck, Detectable, GateReach

_WIDTH = 80
_NAME_WIDTH = 20
_CELL_WIDTH = 9
_AT_A_RATE = (
    "at 2%: the loss told from none if so many answers of a harmless model flip, as many each way, clusters adding no "
    "dependence"
)
_PER_DEVIATION = "per sd: the damage told from none, in such deviations"


def print_check(found: ContractCheck) -> None:
    """Prints the tables, what they assume, and what cannot be decided."""
    sys.stdout.write("\n".join(describe_check(found)) + "\n")


def describe_check(found: ContractCheck) -> Iterator[str]:
    """Yields the lines."""
    yield f"contract {found.contract} on {found.probes}: {found.num_probes:,} probes"
    rates = [gate for gate in found.gates if gate.is_rate]
    means = [gate for gate in found.gates if gate.margin is not None and not gate.is_rate and gate.detectable]
    exact = [gate for gate in found.gates if gate.margin is None and gate.obstacle is None]
    if exact:
        names = " and ".join(gate.name for gate in exact)
        yield from _wrap(f"without a margin: {names}, decided on all probes")
    if rates:
        yield from _rate_table(rates, is_seen=found.earlier is not None)
    if means:
        yield from _mean_table(means, is_seen=found.earlier is not None)
    yield ""
    for gate in found.undecidable:
        yield from _wrap(f"{gate.name}: cannot decide: {gate.obstacle}")
    count = len(found.gates) - len(found.undecidable)
    yield f"{count} of {len(found.gates)} gates can be decided" + (
        "" if found.gates else ": the contract has no gate, and admits nothing"
    )


def _rate_table(gates: Sequence[GateReach], *, is_seen: bool) -> Iterator[str]:
    """Yields the gates on shares of answers: what is told from none at assumed rates of flips, or at those seen."""
    assumed = [f"at {d.assumed:.0%}" for d in gates[0].detectable if not d.is_observed]
    yield ""
    yield _row("0/1 gates", ["probes", "clusters", "margin", "no flip", *(["flips", "loss"] if is_seen else assumed)])
    for gate in gates:
        shown = _seen(gate, is_share=True) if is_seen else [f"{d.value:.2g}" for d in gate.detectable]
        yield _row(gate.name, [*_sizes(gate), _optional(gate.num_without_flip), *shown])
    yield from _wrap(
        "no flip: probes that admit if no answer flips. "
        + ("flips, loss: flips of the earlier report, and the loss told from none" if is_seen else _AT_A_RATE)
        + ", with a chance of .8."
    )


def _mean_table(gates: Sequence[GateReach], *, is_seen: bool) -> Iterator[str]:
    """Yields the other gates: what is told from none in standard deviations, or with those seen."""
    yield ""
    heads = ["probes", "clusters", "margin", "sd below", *(["sd", "damage"] if is_seen else ["per sd"])]
    yield _row("other gates", heads) + ("" if is_seen else "  unit")
    for gate in gates:
        shown = _seen(gate, is_share=False) if is_seen else [f"{gate.detectable[0].value:.2g}"]
        unit = "" if is_seen else f"  {gate.unit}"  # the line is full
        yield _row(gate.name, [*_sizes(gate), _optional(gate.largest_sd), *shown]) + unit
    yield from _wrap(
        "sd below: the standard deviation of the differences between probes up to which the margin can be decided. "
        + ("sd, damage: that of the earlier report, and the damage told from none" if is_seen else _PER_DEVIATION)
        + ", with a chance of .8."
    )


def _sizes(gate: GateReach) -> list[str]:
    return [f"{gate.num_probes:,}", f"{gate.num_clusters:,}", f"{gate.margin:g}"]


def _optional(value: float | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.2g}"


def _seen(gate: GateReach, *, is_share: bool) -> list[str]:
    """Returns two cells: what an earlier report has, and what is told from none with it."""
    found: Detectable | None = next((d for d in gate.detectable if d.is_observed), None)
    if found is None:
        return ["-", "-"]
    return [f"{found.assumed:.1%}" if is_share else f"{found.assumed:.2g}", f"{found.value:.2g}"]


def _row(name: str, cells: Sequence[str]) -> str:
    return (f"{name:<{_NAME_WIDTH}}" + "".join(f"{cell:>{_CELL_WIDTH}}" for cell in cells)).rstrip()


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
