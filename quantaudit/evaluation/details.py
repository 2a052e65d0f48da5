"""What is kept of one comparison for the numbers beside the clauses: every answer token, and who computed it."""

from __future__ import annotations

from dataclasses import dataclass, field

from quantaudit.evaluation.plan import Batch
from quantaudit.observers.paired import PairedBatch
from quantaudit.observers.routing_sums import RoutingLog
from quantaudit.observers.token_sums import TokenLog


@dataclass(slots=True, kw_only=True)
class Details:
    """One comparison: hi with lo, or hi with itself."""

    tokens: TokenLog = field(default_factory=TokenLog)
    routing: RoutingLog = field(default_factory=RoutingLog)

    def add(self, batch: Batch, pair: PairedBatch) -> None:
        """Adds one paired forward."""
        self.tokens.add(pair.tokens(), batch.index_P, pair.hi.counts_B[: len(batch.probes)])
        self.routing.add(pair.hi, pair.lo)
