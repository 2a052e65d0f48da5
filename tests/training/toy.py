"""A small model that learns the closed world's items, its repair, and a recipe to train under.

Four layers of eight experts; every bundled recipe fits it. Steps take some 50 ms of one core.
"""

from __future__ import annotations

import torch

from quantaudit.checkpoint.unstack import round_to_storage
from quantaudit.core.recipe import Execution, Recipe, Repair
from quantaudit.core.recipe_file import load_recipe
from quantaudit.engines.realization import Realization
from quantaudit.model.lm import LanguageModel
from tests.engines.small import SMALL
from tests.model.small_models import build_model

FAMILIES = {"facts": 0.5, "copying": 0.3, "benign": 0.2}
REPAIR = Repair(
    steps=4,
    items_per_step=6,
    micro_batches=2,
    learning_rate=1e-3,
    warmup_steps=1,
    cross_entropy=1.0,
    distillation=1.0,
    families=FAMILIES,
)


def toy_model(seed: int = 0) -> LanguageModel:
    """Returns a model in fp32 whose values bf16 holds where the layout stores bf16."""
    model = build_model(SMALL, seed, torch.float32)
    rounded = dict(round_to_storage(((n, p.detach()) for n, p in model.named_parameters()), SMALL))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(rounded[name].float())
    return model


def toy_hi(seed: int = 0) -> Realization:
    """Returns the model as hi."""
    return Realization(model=toy_model(seed), stored={}, activations={}, execution=Execution())


def toy_recipe(name: str = "int3-qad", **changes: object) -> Recipe:
    """Returns a bundled recipe's rules with a repair of a few steps."""
    bundled = load_recipe(name)
    assert bundled.repair is not None
    kept = {key: getattr(bundled.repair, key) for key in ("learns_scales", "scale_rate", "trained", "weights")}
    return bundled.model_copy(update={"repair": REPAIR.model_copy(update=kept | changes)})
