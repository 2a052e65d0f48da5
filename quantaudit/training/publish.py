"""Publishes a trained state as the embedded checkpoint, with the card that says what it can do.

`python -m quantaudit.training.publish STATE` writes config.json, model.safetensors and card.json: the digest of the
weights, the command that makes them, and the accuracy of every family on the audit split.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch

from quantaudit.checkpoint.digest import digest_checkpoint
from quantaudit.checkpoint.load import load_model
from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.checkpoint.unstack import round_to_storage
from quantaudit.checkpoint.writer import write_checkpoint
from quantaudit.core.resources import embedded_model_folder
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.model.lm import LanguageModel
from quantaudit.probes.world import default_probes
from quantaudit.training.embedded import EMBEDDED_CONFIG, Curriculum, build_optimizer, family_accuracy
from quantaudit.training.state import load_state


class Card(Frozen):
    """What ships beside the embedded weights.

    Attributes:
        weights_digest: Digest of the checkpoint's tensors.
        command: What makes them, from nothing.
        num_steps: Optimizer steps taken.
        num_parameters: Parameters of the model.
        probes_digest: Digest of the audit split on which the accuracies were measured.
        accuracy: Share of probes answered exactly, by family.
    """

    weights_digest: str
    command: str
    num_steps: int
    num_parameters: int
    probes_digest: str
    accuracy: dict[str, float]


def publish(state: Path, target: Path) -> Card:
    """Writes the checkpoint and its card over whatever is in `target`."""
    model = LanguageModel(EMBEDDED_CONFIG)
    steps = load_state(state, model, build_optimizer(model, Curriculum()))
    fresh = target.with_name(f".{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    rounded = round_to_storage(((n, p.detach()) for n, p in model.named_parameters()), EMBEDDED_CONFIG)
    write_checkpoint(fresh, EMBEDDED_CONFIG, rounded, scheme=None, shard_bytes=None)
    checkpoint = open_checkpoint(fresh)
    probes = default_probes()
    card = Card(
        weights_digest=digest_checkpoint(checkpoint),
        command=(
            f"python -m quantaudit.training.embedded STATE --steps {steps}; python -m quantaudit.training.publish STATE"
        ),
        num_steps=steps,
        num_parameters=sum(p.numel() for p in model.parameters()),
        probes_digest=probes.digest(),
        accuracy=family_accuracy(load_model(checkpoint), probes),
    )
    write_atomically(fresh / "card.json", card.to_json().encode())
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
    return card


def main() -> None:
    """Runs the program from the command line."""
    parser = argparse.ArgumentParser(description="Publish a trained state as the embedded checkpoint.")
    parser.add_argument("state", type=Path, help="folder of the training state")
    parser.add_argument("--out", type=Path, default=None, help="checkpoint folder; the embedded one if left out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(publish(args.state, args.out or embedded_model_folder()).to_json())


if __name__ == "__main__":
    main()
