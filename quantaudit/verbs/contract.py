"""`contract check`: what a probe set can decide under a contract, before anything is run."""

from __future__ import annotations

from pathlib import Path

from quantaudit import reporting
from quantaudit.core.recipe_file import load_contract
from quantaudit.evaluation.decidable import ContractCheck, check_reach
from quantaudit.evaluation.subset import choose_probes
from quantaudit.registered import open_probes


def check_contract(
    contract: str | Path = "default", *, probes: str = "world/audit", earlier: str | Path | None = None
) -> ContractCheck:
    """Tells which gates of a contract a probe set can decide, before anything is run.

    Args:
        contract: Bundled name or TOML file.
        probes: Probe set: "world/audit" or "world/select".
        earlier: A `report.json` whose flips and spreads stand in for assumptions.

    Raises:
        InputError: If an input is wrong.
    """
    agreed = load_contract(contract)
    report = None if earlier is None else reporting.read_report(Path(earlier))
    return check_reach(agreed, choose_probes(open_probes(probes), agreed), report)
