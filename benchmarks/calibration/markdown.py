"""The table in short: one line a rule, the worst cells, and where rules decline."""

from __future__ import annotations

from benchmarks.calibration.digest import BEYOND, MEANINGS, REFUSAL, RuleDigest, digest_rules, with_error
from benchmarks.calibration.table import Calibration, summarize


def render_markdown(table: Calibration) -> str:
    """Returns the markdown file."""
    digests = digest_rules(table)
    lines = [
        "# Calibration of the decision rules",
        "",
        summarize(table),
        "",
        "Rates in percent, each with its Monte-Carlo standard error. *False ADMIT*: the truth is on the margin. *False "
        "REJECT*: the truth is on the margin or there is no damage. Every cell is in `calibration.json`; "
        "`calibration.html` shows them.",
        "",
        "| rule | cells | worst false ADMIT | worst false REJECT | least coverage of 90 % intervals | refused |",
        "|---|---:|---:|---:|---:|---:|",
        *(_line(digest) for digest in digests),
        "",
        "## The worst cells",
        "",
        "| rule | situation | samples | false ADMIT | limit | coverage | power at no damage |",
        "|---|---|---:|---:|---:|---:|---:|",
        *(line for digest in digests for line in _worst(digest)),
        "",
        "## Where rules refuse",
        "",
        REFUSAL,
        "",
        *(
            f"- {d.rule.value}: {d.num_refused} of {d.num_cells} cells ({', '.join(d.refused)})."
            for d in digests
            if d.num_refused
        ),
        "",
        "## What this does not promise",
        "",
        BEYOND,
        "",
        "## Rules",
        "",
        *(f"- **{digest.rule.value}**: {MEANINGS[digest.rule]}" for digest in digests),
        "",
        f"Made by `{table.command}` (seed {table.seed}; "
        + ", ".join(f"{name} {version}" for name, version in table.versions.items())
        + ").",
    ]
    return "\n".join(lines) + "\n"


def _line(digest: RuleDigest) -> str:
    worst = with_error(digest.worst[0].false_admit) if digest.worst else ""
    cells = [f"{digest.num_cells:,}", worst, with_error(digest.false_reject), with_error(digest.coverage)]
    return f"| {digest.rule.value} | " + " | ".join(cells) + f" | {digest.num_refused:,} |"


def _worst(digest: RuleDigest) -> list[str]:
    return [
        f"| {digest.rule.value} | {cell.situation()} | {cell.replicates:,} | {with_error(cell.false_admit)} | "
        f"{100 * cell.limit():.1f} | {with_error(cell.coverage)} | {with_error(cell.power)} |"
        for cell in digest.worst[:3]
    ]
