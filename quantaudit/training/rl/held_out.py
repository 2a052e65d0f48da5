"""Greedy answers to held-out prompts of the harder family, before and after: what training was good for.

The prompts are probes of the select split, the same before and after, so their rewards are paired; clusters are those
of the probes. Whoever tunes a run looks at the held-out ones. A second set, drawn apart from them, is asked when the
run is over and not before: it confirms the rise or does not. The audit split is never read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from quantaudit.core.probe import Probe, Split
from quantaudit.core.rl_run import HeldOut
from quantaudit.probes.tokenizer import BOS, EOS, encode
from quantaudit.probes.world import World, build_probes
from quantaudit.stats import estimate_mean, gather
from quantaudit.training.rl.decoding import Request, Want
from quantaudit.training.rl.engine import Engine
from quantaudit.training.rl.samples import MAX_NEW
from quantaudit.training.rl.sampling import GREEDY

_ALPHA = 0.025  # one-sided, so that the interval is of 95 %


def held_out_probes(world: World, family: str, count: int) -> tuple[Probe, ...]:
    """Returns the prompts, spread evenly over the family's clusters."""
    return build_probes(world, Split.SELECT, {family: count}).probes if count else ()


def confirming_probes(world: World, family: str, count: int, known: Iterable[str]) -> tuple[Probe, ...]:
    """Returns as many other prompts, spread as evenly; none is known, nor another wording of a known one.

    Args:
        world: Where they are drawn from.
        family: Their family.
        count: How many.
        known: Prompts that are looked at during the run.
    """
    seen = set(map(content_of, known))
    drawn = held_out_probes(world, family, count + 2 * len(seen)) if count else ()
    rounds: dict[Probe, int] = {}
    num_of: Counter[str] = Counter()
    for probe in drawn:
        if content_of(probe.prompt) not in seen:
            rounds[probe] = num_of[probe.cluster]
            num_of[probe.cluster] += 1
    return tuple(sorted(rounds, key=rounds.__getitem__)[:count])


def content_of(prompt: str) -> tuple[str, ...]:
    """Returns what a prompt is about: its numbers, however they are put, or its words where it has none."""
    return tuple(sorted(re.findall(r"\d+", prompt))) or (prompt,)


def greedy_rewards(engine: Engine, probes: tuple[Probe, ...]) -> list[int]:
    """Returns 1 for every probe that is answered right, else 0."""
    requests = [Request(key=p.id, tokens=(BOS, *encode(p.prompt)), max_new=MAX_NEW[p.family]) for p in probes]
    answers = engine.generate(requests, GREEDY, Want())
    return [int(a.tokens == (*encode(p.response), EOS)) for p, a in zip(probes, answers, strict=True)]


def compare_rewards(probes: tuple[Probe, ...], before: list[int], after: list[int]) -> HeldOut:
    """Returns the paired difference."""
    rises = [float(b - a) for a, b in zip(before, after, strict=True)]
    return HeldOut(
        family=probes[0].family,
        before=sum(before) / len(before),
        after=sum(after) / len(after),
        rise=estimate_mean(gather(rises, [p.cluster for p in probes]), alpha=_ALPHA),
    )
