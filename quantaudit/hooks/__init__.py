"""Hooks: what runs inside somebody's trainer or engine; torch and the standard library only, names load when used.

In the trainer: `StepAuditor` compares what is served with what is trained, `audit_trainer` adds it to a `Trainer` of
transformers, `audit_rollouts` to TRL's GRPO. In the engine: `hold`, `export_shard` and `merge_shards` make the manifest
of what was loaded. `leaf` has the order-free digest of which both are made.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quantaudit.hooks.auditor import Alarm, StepAuditor, StepMismatchError
    from quantaudit.hooks.experts import read_experts, read_masters
    from quantaudit.hooks.exporter import export_shard
    from quantaudit.hooks.findings import StepFinding, StepStatus
    from quantaudit.hooks.held import HeldWeight, hold
    from quantaudit.hooks.huggingface import audit_trainer
    from quantaudit.hooks.merge import merge_shards
    from quantaudit.hooks.shards import Shard, write_whole
    from quantaudit.hooks.trl_rollout import audit_rollouts

__all__ = [
    "Alarm",
    "HeldWeight",
    "Shard",
    "StepAuditor",
    "StepFinding",
    "StepMismatchError",
    "StepStatus",
    "audit_rollouts",
    "audit_trainer",
    "export_shard",
    "hold",
    "merge_shards",
    "read_experts",
    "read_masters",
    "write_whole",
]

_HOMES = {
    "Alarm": "auditor",
    "HeldWeight": "held",
    "Shard": "shards",
    "StepAuditor": "auditor",
    "StepFinding": "findings",
    "StepMismatchError": "auditor",
    "StepStatus": "findings",
    "audit_rollouts": "trl_rollout",
    "audit_trainer": "huggingface",
    "export_shard": "exporter",
    "hold": "held",
    "merge_shards": "merge",
    "read_experts": "experts",
    "read_masters": "experts",
    "write_whole": "shards",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
