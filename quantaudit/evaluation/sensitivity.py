"""The sensitivity control: every gate must fail under some planted fault, or it cannot clear a model of one."""

from __future__ import annotations

from collections.abc import Mapping

from quantaudit.core.decision import Outcome
from quantaudit.core.report import Control


def sensitivity_control(smallest: Mapping[str, float | None]) -> Control:
    """Returns the control.

    Args:
        smallest: Smallest planted damage at which each gate failed, in margins; 0 for gates without a margin that
            failed, `None` for gates that saw nothing.
    """
    blind = tuple(name for name, dose in smallest.items() if dose is None)
    doses = [dose for dose in smallest.values() if dose]
    detail = f"planted faults fail {len(smallest) - len(blind)} of {len(smallest)} gates"
    if doses:
        detail += f", at a damage of {min(doses):.1f} to {max(doses):.1f} margins"
    if blind:
        detail += "; not " + ", ".join(blind)
    outcome = Outcome.UNDECIDED if blind or not smallest else Outcome.PASS
    return Control(name="sensitivity", outcome=outcome, detail=detail, covers=blind)
