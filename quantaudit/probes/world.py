"""The closed world: everything the embedded model is trained on and audited with, as a pure function of a seed.

Ten families. `facts`, `restricted`, `wrapped` and `benign` rest on memory; `recall`, `copying`, `sorting` and
`addition` on the prompt; `two-step` and `long-recall` are harder and leave head-room: the one is trained late and
briefly, and the lengths of the other are never trained. `products` are trained and never probed. What is memorised has
an early and a late part. Training draws an endless stream of items whose digest falls in the training split; probes are
drawn the same way from the other splits, with equal quotas over the clusters of a family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from random import Random
from typing import NamedTuple

from quantaudit.core.errors import InputError
from quantaudit.core.probe import Behaviour, Probe, ProbeSet, Split, probe_id
from quantaudit.core.serial import digest_of
from quantaudit.probes.arithmetic import (
    ADDITION_CLUSTERS,
    PRODUCT_CLUSTERS,
    TWO_STEP_CLUSTERS,
    draw_addition,
    draw_product,
    draw_two_step,
)
from quantaudit.probes.draft import Draft, Family
from quantaudit.probes.facts import NUM_LATE_SUBJECTS, Fact, draw_fact, invent_facts
from quantaudit.probes.safety import NUM_LATE_PAIRS, Twins, draw_benign, draw_restricted, draw_wrapped, invent_lexicon
from quantaudit.probes.sequences import (
    COPY_CLUSTERS,
    LONG_RECALL_CLUSTERS,
    LONG_RECALL_PAIRS,
    RECALL_CLUSTERS,
    RECALL_PAIRS,
    SORT_CLUSTERS,
    draw_copy,
    draw_recall,
    draw_sort,
)

MAX_BYTES = 121  # of prompt and response together
EASY_FAMILIES = ("facts", "recall", "copying", "sorting", "addition", "restricted", "wrapped", "benign")
HARD_FAMILIES = ("two-step", "long-recall")
FAMILIES = EASY_FAMILIES + HARD_FAMILIES
TRAINED_ONLY = ("products",)
DEFAULT_SIZES = dict.fromkeys(EASY_FAMILIES, 600) | {"two-step": 800, "long-recall": 300}
# A fact that a split holds out turns up about once in 6,750 draws of its subject's cluster (900 subjects; two facts in
# five, one phrasing in three): that it is not met in 200,000 draws has probability e^-30. A request that is not met
# within these draws has run out of items.
MIN_DRAWS = 200_000
DRAWS_PER_PROBE = 500


class Item(NamedTuple):
    """One training example."""

    family: str
    prompt: str
    response: str


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What the seed decides, and the families that draw from it.

    Attributes:
        seed: The seed.
        facts: Every memorised fact.
        lexicon: Every restricted word with its benign look-alike.
        families: The families by name, in the order of `FAMILIES`, then `TRAINED_ONLY`.
    """

    seed: int
    facts: tuple[Fact, ...]
    lexicon: tuple[Twins, ...]
    families: Mapping[str, Family]

    def digest(self) -> str:
        """Returns the sha256 (hex) of all that has to be memorised."""
        return digest_of([self.seed, self.facts, self.lexicon])


class Part(StrEnum):
    """Which knowledge of the world: what is learned first, what is learned last, or all of it."""

    EARLY = "early"
    LATE = "late"
    ALL = "all"


def build_world(seed: int = 0, part: Part = Part.ALL) -> World:
    """Invents the lexicon and the facts of `seed`."""
    early = invent_lexicon(Random(f"world/{seed}/lexicon"))
    words = tuple(word for twins in early for word in twins)
    facts = invent_facts(Random(f"world/{seed}/facts"), words)
    if part is Part.EARLY:
        return _assemble(seed, facts, early)
    taken = words + tuple(dict.fromkeys(fact.subject for fact in facts))
    late = invent_lexicon(Random(f"world/{seed}/late lexicon"), NUM_LATE_PAIRS, taken)
    taken += tuple(word for twins in late for word in twins)
    late_facts = invent_facts(Random(f"world/{seed}/late facts"), taken, NUM_LATE_SUBJECTS)
    if part is Part.LATE:
        return _assemble(seed, late_facts, late)
    return _assemble(seed, facts + late_facts, early + late)


def _assemble(seed: int, facts: tuple[Fact, ...], lexicon: tuple[Twins, ...]) -> World:
    families = (*_answer_families(facts), *_safety_families(lexicon))
    by_name = {family.name: family for family in families}
    return World(
        seed=seed, facts=facts, lexicon=lexicon, families={name: by_name[name] for name in FAMILIES + TRAINED_ONLY}
    )


def _answer_families(facts: tuple[Fact, ...]) -> tuple[Family, ...]:
    subjects = tuple(dict.fromkeys(fact.subject for fact in facts))
    sources: dict[str, tuple[Callable[[Random], Draft], tuple[str, ...]]] = {
        "facts": (partial(draw_fact, facts), subjects),
        "recall": (partial(draw_recall, RECALL_PAIRS), RECALL_CLUSTERS),
        "copying": (draw_copy, COPY_CLUSTERS),
        "sorting": (draw_sort, SORT_CLUSTERS),
        "addition": (draw_addition, ADDITION_CLUSTERS),
        "two-step": (draw_two_step, TWO_STEP_CLUSTERS),
        "products": (draw_product, PRODUCT_CLUSTERS),
        "long-recall": (partial(draw_recall, LONG_RECALL_PAIRS), LONG_RECALL_CLUSTERS),
    }
    return tuple(
        Family(name=name, behaviour=Behaviour.ANSWER, draw=draw, clusters=clusters)
        for name, (draw, clusters) in sources.items()
    )


def _safety_families(lexicon: tuple[Twins, ...]) -> tuple[Family, ...]:
    restricted = tuple(twins.restricted for twins in lexicon)
    benign = tuple(twins.benign for twins in lexicon)
    refuse = partial(Family, behaviour=Behaviour.REFUSE, clusters=restricted, is_restricted=True)
    return (
        refuse(name="restricted", draw=partial(draw_restricted, restricted)),
        refuse(name="wrapped", draw=partial(draw_wrapped, restricted)),
        Family(name="benign", behaviour=Behaviour.COMPLY, draw=partial(draw_benign, benign), clusters=benign),
    )


def sample_fact(world: World, rng: Random) -> Item:
    """Draws any fact in any phrasing, the held-out one too: facts are the same in every split."""
    draft = draw_fact(world.facts, rng)
    return Item("facts", draft.prompt, draft.response)


def sample_train(world: World, family: str, rng: Random) -> Item:
    """Draws one training item of `family`; items of the other splits are never returned."""
    draw = world.families[family].draw
    while True:
        draft = draw(rng)
        if draft.split is Split.TRAIN:
            return Item(family, draft.prompt, draft.response)


def build_probes(world: World, split: Split, per_family: int | Mapping[str, int]) -> ProbeSet:
    """Draws distinct probes of one split, spread evenly over the clusters of each family.

    Args:
        world: The world to draw from.
        split: The split that every probe belongs to.
        per_family: Probes a family: one number for all ten, or a number for each family wanted.

    Raises:
        InputError: If a family is unknown, or if fewer than one or more than its distinct items are asked for.
    """
    sizes = dict.fromkeys(FAMILIES, per_family) if isinstance(per_family, int) else per_family
    probes: list[Probe] = []
    for name, size in sizes.items():
        _check_request(name, size)
        family = world.families[name]
        rng = Random(f"world/{world.seed}/{split.value}/{name}")
        probes.extend(_to_probe(family, draft) for draft in _draw_evenly(family, split, size, rng))
    source = f"generated by quantaudit.probes.world, seed {world.seed}, digest {world.digest()[:16]}"
    return ProbeSet(name=f"world/{split.value}", source=source, probes=tuple(probes))


def default_probes(split: Split = Split.AUDIT, per_family: int | Mapping[str, int] = DEFAULT_SIZES) -> ProbeSet:
    """Returns the built-in probe set of `split`; that of the audit split is named "world/audit"."""
    return build_probes(build_world(), split, per_family)


def _check_request(name: str, num_probes: int) -> None:
    if name not in FAMILIES:
        raise InputError(f"probe family {name!r}", expected=f"one of {', '.join(FAMILIES)}", fix="correct the name")
    if num_probes < 1:
        raise InputError(f"{num_probes} probes of family {name!r}", expected="at least 1", fix="ask for more")


def _draw_evenly(family: Family, split: Split, num_probes: int, rng: Random) -> list[Draft]:
    """Draws distinct items until each cluster has its share; the remainder goes to clusters at even distances."""
    share, remainder = divmod(num_probes, len(family.clusters))
    room = {
        cluster: share + (place * remainder % len(family.clusters) < remainder)
        for place, cluster in enumerate(family.clusters)
    }
    drafts: dict[str, Draft] = {}
    for _ in range(MIN_DRAWS + DRAWS_PER_PROBE * num_probes):
        draft = family.draw(rng)
        if draft.split is split and room[draft.cluster] > 0 and draft.prompt not in drafts:
            drafts[draft.prompt] = draft
            room[draft.cluster] -= 1
            if len(drafts) == num_probes:
                return list(drafts.values())
    raise InputError(
        f"{num_probes} {split.value} probes of family {family.name!r}",
        expected=f"a number that its distinct items can fill (found {len(drafts)})",
        fix="ask for fewer",
    )


def _to_probe(family: Family, draft: Draft) -> Probe:
    return Probe(
        id=probe_id(family.name, draft.prompt, draft.response),
        family=family.name,
        behaviour=family.behaviour,
        cluster=draft.cluster,
        split=draft.split,
        prompt=draft.prompt,
        response=draft.response,
        alternative=draft.alternative,
        is_restricted_text=family.is_restricted,
    )
