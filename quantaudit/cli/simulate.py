"""`quantaudit simulate`: training with a check at every step."""

from __future__ import annotations

import typer

from quantaudit.cli.simulate_qat import qat
from quantaudit.cli.simulate_rl import rl

simulate = typer.Typer(
    help="Train with a check at every step.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
simulate.command(short_help="Quantization-aware training.")(qat)
simulate.command(short_help="Reinforcement learning with a rollout engine.")(rl)
