"""Reports are made without torch, and the console summary without the template library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from quantaudit.core.report import AuditReport
from quantaudit.reporting.stored import to_stored_json

PROGRAM = """
import sys
from pathlib import Path
from quantaudit.reporting import read_report, render_console
report = read_report(Path(sys.argv[1]))
render_console(report, width=80, color=False)
heavy = {"jinja2", "torch", "pandas"} & set(sys.modules)
assert not heavy, heavy
from quantaudit.reporting import write_reports
write_reports(report, Path(sys.argv[2]), ["md", "html", "junit", "sarif"])
heavy = {"torch", "pandas", "scipy"} & set(sys.modules)
assert not heavy, heavy
print("light")
"""


def test_no_view_imports_torch(admitted: AuditReport, tmp_path: Path) -> None:
    source = tmp_path / "report.json"
    source.write_text(to_stored_json(admitted))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(source), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.stdout, done.returncode) == ("light\n", 0), done.stderr
