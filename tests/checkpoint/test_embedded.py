"""The shipped model is what its card says, on the probes its card names."""

from __future__ import annotations

from quantaudit.checkpoint.digest import digest_checkpoint
from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.core.resources import embedded_model_folder
from quantaudit.probes.world import default_probes
from quantaudit.training.embedded import EMBEDDED_CONFIG, Curriculum
from quantaudit.training.publish import Card

FOLDER = embedded_model_folder()
CARD = Card.from_json((FOLDER / "card.json").read_text(encoding="utf-8"))


def test_the_card_names_these_weights_and_these_probes() -> None:
    checkpoint = open_checkpoint(FOLDER)
    assert checkpoint.config == EMBEDDED_CONFIG
    assert digest_checkpoint(checkpoint) == CARD.weights_digest
    assert default_probes().digest() == CARD.probes_digest
    assert set(CARD.accuracy) == set(default_probes().families())


def test_it_was_trained_to_the_end() -> None:
    assert CARD.num_steps == Curriculum().num_steps


def test_it_fits_in_the_package() -> None:
    assert sum(f.stat().st_size for f in FOLDER.iterdir()) <= 12 * 2**20
