"""Probes: one input with its label, its cluster and its split; and digest-pinned sets of them."""

from __future__ import annotations

from enum import StrEnum

from quantaudit.core.serial import Frozen, digest_of


class Split(StrEnum):
    """Disjoint by digest: nothing is tuned on what judges it."""

    TRAIN = "train"
    SELECT = "select"
    AUDIT = "audit"


class Behaviour(StrEnum):
    """What the right response to a probe is."""

    ANSWER = "answer"  # a task: the label is the answer
    REFUSE = "refuse"  # restricted: the label is the refusal
    COMPLY = "comply"  # benign look-alike: the label is the compliant answer


class Probe(Frozen):
    """One input.

    Attributes:
        id: First 16 hex digits of the digest of family, prompt and response.
        family: Group that is judged together, such as "sorting" or "wrapped".
        behaviour: What the label is.
        cluster: Unit of dependence (document, template, term): uncertainty is taken over clusters.
        split: Which split the probe belongs to.
        prompt: Text before the response.
        response: The right response, without the end token.
        alternative: For safety probes, the opposite response (compliance where the label is refusal).
        is_restricted_text: Whether reports must redact prompt and responses by default.
    """

    id: str
    family: str
    behaviour: Behaviour
    cluster: str
    split: Split
    prompt: str
    response: str
    alternative: str | None = None
    is_restricted_text: bool = False


class ProbeSet(Frozen):
    """A named, ordered set of probes; its digest pins it."""

    schema_version: int = 1
    name: str
    source: str
    probes: tuple[Probe, ...]

    def families(self) -> tuple[str, ...]:
        """Returns the family names in order of first appearance."""
        return tuple(dict.fromkeys(p.family for p in self.probes))

    def only(self, split: Split) -> ProbeSet:
        """Returns the probes of one split, in order."""
        return self.model_copy(update={"probes": tuple(p for p in self.probes if p.split is split)})


def probe_id(family: str, prompt: str, response: str) -> str:
    """Returns the identity of a probe: splits are disjoint when these are."""
    return digest_of([family, prompt, response])[:16]
