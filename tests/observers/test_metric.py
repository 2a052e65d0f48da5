"""Observers and the torch-free table of metrics say the same, and recorded results need no torch."""

from __future__ import annotations

import subprocess
import sys

from quantaudit.observers.builtin import PROBE_OBSERVERS
from quantaudit.observers.metric import METRICS


def test_every_observer_measures_its_metric() -> None:
    for name, observer in PROBE_OBSERVERS.items():
        assert METRICS[name] == observer.metric()
    assert set(METRICS) - set(PROBE_OBSERVERS) == {"score"}  # what only other harnesses record


def test_reading_tables_and_planting_faults_need_no_torch() -> None:
    code = (
        "import sys, quantaudit.evaluation.doses, quantaudit.evaluation.floor, quantaudit.evaluation.sensitivity; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
