"""A probe set is a function that makes it; a probe is called by the digest of what it says."""

from __future__ import annotations

from quantaudit.core.probe import Behaviour, Probe, ProbeSet, Split, probe_id

_WORDS = ("stone", "river", "cloud", "lamp", "door", "garden", "hammer", "window")


def make_plurals() -> ProbeSet:
    """English plurals: eight probes of one family, each a cluster of its own."""
    return ProbeSet(name="plurals", source="an example", probes=tuple(map(_probe, _WORDS)))


def _probe(word: str) -> Probe:
    prompt, response = f"one {word}, two ", f"{word}s"
    return Probe(
        id=probe_id("plurals", prompt, response),
        family="plurals",
        behaviour=Behaviour.ANSWER,
        cluster=word,
        split=Split.AUDIT,
        prompt=prompt,
        response=response,
    )
