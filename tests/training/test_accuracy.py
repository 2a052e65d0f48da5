"""Accuracy is what greedy decoding would have written, family by family."""

from __future__ import annotations

import torch

from quantaudit.checkpoint.load import load_model
from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.core.probe import ProbeSet, Split
from quantaudit.core.recipe import Execution
from quantaudit.core.resources import embedded_model_folder
from quantaudit.engines.native import NativeEngine
from quantaudit.engines.realization import Realization
from quantaudit.model.lm import LanguageModel
from quantaudit.probes.tokenizer import BOS, EOS, encode
from quantaudit.probes.world import default_probes
from quantaudit.training.embedded import family_accuracy

FAMILIES = ("copying", "restricted", "facts", "two-step")


def by_decoding(model: LanguageModel, probes: ProbeSet) -> dict[str, float]:
    """Returns the share of probes whose greedy continuation is the response and its end."""
    engine = NativeEngine(
        Realization(model=model, stored={}, activations={}, execution=Execution()), torch.device("cpu")
    )
    hits: dict[str, list[bool]] = {}
    for probe in probes.probes:
        right = (*encode(probe.response), EOS)
        (answer,) = engine.decode([(BOS, *encode(probe.prompt))], max_new=len(right))
        hits.setdefault(probe.family, []).append(answer == right)
    return {family: sum(h) / len(h) for family, h in hits.items()}


def test_accuracy_is_that_of_decoding() -> None:
    model = load_model(open_checkpoint(embedded_model_folder()))
    # What the embedded model answers by greedy decoding is the right response, whatever it was trained to; a few
    # probes of the world as they are add what it gets wrong.
    probes = default_probes(Split.SELECT, dict.fromkeys(FAMILIES, 6))
    decoded = by_decoding(model, probes)
    assert family_accuracy(model, probes, batch_size=5) == decoded
    assert set(decoded) == set(FAMILIES)


def test_whatever_the_model_writes_is_right_when_it_is_the_label() -> None:
    model = load_model(open_checkpoint(embedded_model_folder()))
    engine = NativeEngine(
        Realization(model=model, stored={}, activations={}, execution=Execution()), torch.device("cpu")
    )
    asked = default_probes(Split.SELECT, dict.fromkeys(FAMILIES, 6)).probes
    answers = [engine.decode([(BOS, *encode(p.prompt))], max_new=24)[0] for p in asked]
    ended = [
        p.model_copy(update={"response": bytes(a[:-1]).decode("ascii")})
        for p, a in zip(asked, answers, strict=True)
        if a[-1] == EOS and all(t < 128 for t in a[:-1])
    ]
    assert ended, "some answer must end"
    as_labels = ProbeSet(name="echo", source="tests", probes=tuple(ended))
    assert set(family_accuracy(model, as_labels, batch_size=7).values()) == {1.0}
    wrong = [p.model_copy(update={"response": p.response + "x"}) for p in ended]
    assert set(family_accuracy(model, ProbeSet(name="x", source="tests", probes=tuple(wrong))).values()) == {0.0}
