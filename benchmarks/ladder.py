"""The ladder: the default audit of the embedded model under every bundled recipe that rounds to nearest.

`python -m benchmarks.ladder [--threads N]` prints the table and writes benchmarks/results/ladder.json. Predicted before
the first run: fp8-block and the 4-bit recipes within the fidelity margin of 0.02 nats, int3 near it, int2 rejected.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from quantaudit.api import audit
from quantaudit.core.recipe_file import load_recipe, recipe_names
from quantaudit.core.report import AuditReport

RESULTS = Path(__file__).parent / "results" / "ladder.json"


def main() -> None:
    """Runs every audit and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=None)
    untrained = [name for name in recipe_names() if load_recipe(name).rounds_to_nearest()]
    parser.add_argument("recipes", nargs="*", default=untrained)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as controls:  # hi is the same in every audit, and so are its controls
        for name in args.recipes:
            print(name, file=sys.stderr, flush=True)
            rows.append(summarize(name, audit(recipe=name, threads=args.threads, controls_folder=controls)))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(format_table(rows))


Row = dict[str, str | float | None | dict[str, float]]


def summarize(recipe: str, report: AuditReport) -> Row:
    """Returns the row of one recipe."""
    fidelity = next(c for c in report.clauses if c.clause.observer == "nll")
    sqnr = next((c.lo for c in report.clauses if c.clause.observer == "weight-sqnr"), None)
    return {
        "recipe": recipe,
        "verdict": report.verdict.admission.value,
        "deciding": ", ".join(report.verdict.deciding[:3]),
        "bits": report.lo.stored_bits_per_expert_weight,
        "nll_damage": fidelity.estimate.value if fidelity.estimate else 0.0,
        "worst_sqnr_db": sqnr if sqnr is not None else 0.0,
        "hi_accuracy": {f.name: f.hi_accuracy for f in report.probes.families},
        "lo_accuracy": {f.name: f.lo_accuracy for f in report.probes.families},
        "share_under_one_nat": _share_under_one_nat(report),
        "seconds": report.run.seconds,
    }


def _share_under_one_nat(report: AuditReport) -> float:
    families = report.probes.families
    return sum(f.share_under_one_nat * f.num_probes for f in families) / sum(f.num_probes for f in families)


def format_table(rows: list[Row]) -> str:
    """Returns the markdown table: a row a recipe, hi first."""
    first = rows[0]["hi_accuracy"]
    assert isinstance(first, dict)
    families = list(first)
    lines = [
        "| recipe | verdict | bits | NLL | " + " | ".join(families) + " |",
        "|---|---|---|---|" + "---|" * len(families),
        "| (hi) | | 16 | | " + " | ".join(f"{100 * first[f]:.1f}" for f in families) + " |",
    ]
    for row in rows:
        accuracy = row["lo_accuracy"]
        assert isinstance(accuracy, dict)
        cells = " | ".join(f"{100 * accuracy[f]:.1f}" for f in families)
        lines.append(
            f"| `{row['recipe']}` | {row['verdict']} | {row['bits']:.2f} | {row['nll_damage']:+.4f} | {cells} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
