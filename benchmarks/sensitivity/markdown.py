"""The table in short: a line a mismatch, then clean steps, delays, and what a gap alone can see."""

from __future__ import annotations

from benchmarks.sensitivity.table import InjectionRow, PowerRow, Sensitivity, Share, summarize

READING = (
    "*Latent*: the mismatch changed no value of the run (an execution: no bit of a batch of 16), so nobody could see "
    "it. *Detected*, *named*, *weights*: of the other runs, those in which the check of the first changed step "
    "found something, named it, and listed exactly the weights that differ; with 95 % Clopper-Pearson intervals. What "
    "differs is found out by brute force beside the check."
)
GAP = (
    "The mean |log-probability gap| of a step's tokens against what clean samples of as many tokens exceed once in a "
    "hundred. Clean gaps are rounding, but for rare jumps where a rounding flips a code or an expert: the limit "
    "must clear them. This is all that can be seen of an engine that shows neither its weights nor its execution."
)
DELAY = "One expert of one layer is mistreated from some step on; the check sees it when its turn comes."


def render_markdown(table: Sensitivity) -> str:
    """Returns the markdown file."""
    lines = [
        "# Sensitivity of the check of every step",
        "",
        summarize(table),
        "",
        READING,
        "",
        "| mismatch | kind | runs | latent | detected | named | weights | cause seen of latent |",
        "|---|---|---:|---:|---|---|---|---:|",
        *map(_line, table.injections),
        "",
        "## Clean steps",
        "",
        "| scheme | steps | false alarms |",
        "|---|---:|---|",
        *(f"| {row.scheme} | {row.steps:,} | {write_share(row.alarms)} |" for row in table.clean),
        "",
        "## Partial checks",
        "",
        DELAY,
        "",
        "| every | experts | values compared | found in time | mean delay | longest | bound |",
        "|---:|---:|---:|---|---:|---:|---:|",
        *(
            f"| {r.every} | 1 in {r.period} | {r.cost:.1%} | {write_share(r.found)} | {r.mean_delay:.2f} | "
            f"{r.max_delay} | {r.bound} |"
            for r in table.delays
        ),
        "",
        "## The gap alone",
        "",
        GAP,
        "",
        f"| mismatch | compute | gap, nats | floor | {' | '.join(f'{n:,} tokens' for n in table.tokens)} |",
        f"|---|---|---:|---:|{'---:|' * len(table.tokens)}",
        *map(_power, table.power),
        "",
        f"Made by `{table.command}` in {table.seconds / 60:.0f} minutes of one core (seed {table.seed}; "
        + ", ".join(f"{name} {version}" for name, version in table.versions.items())
        + "). Every miss is in `sensitivity.json` with its seed.",
    ]
    return "\n".join(lines) + "\n"


def write_share(share: Share | None) -> str:
    """Returns count, total and interval in a few words; a dash where there is nothing."""
    if share is None or not share.total:
        return "-"
    return f"{share.count} of {share.total} ({share.lower:.1%} to {share.upper:.1%})"


def _line(row: InjectionRow) -> str:
    shares = (write_share(s) for s in (row.detected, row.named, row.localised))
    return f"| {row.name} | {row.kind} | {row.runs} | {row.latent} | {' | '.join(shares)} | {row.seen_latent} |"


def _power(row: PowerRow) -> str:
    cells = " | ".join(f"{p:.0%}" for p in row.power)
    return f"| {row.name} | {row.dtype} | {row.effect:.2e} | {row.floor:.2e} | {cells} |"
