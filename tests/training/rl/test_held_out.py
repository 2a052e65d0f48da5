"""Prompts that confirm a rise are new ones of the select split, and are asked of the first and of the last weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from quantaudit.core.errors import InputError
from quantaudit.core.probe import Split
from quantaudit.core.rl_run import RlResult
from quantaudit.probes import tokenizer
from quantaudit.training.rl.decoding import Continuation, Request, Want
from quantaudit.training.rl.engine import RolloutEngine
from quantaudit.training.rl.engine_client import EngineDiedError
from quantaudit.training.rl.held_out import confirming_probes, content_of, held_out_probes
from quantaudit.training.rl.replay import canary_requests
from quantaudit.training.rl.run import run_loop
from quantaudit.training.rl.run_folder import RESULT_FILE
from quantaudit.training.rl.sampling import Sampling
from quantaudit.training.run_state import STATE_FILE
from tests.training.rl.tiny import SHORT, TINY, request, run_here, world

FAMILY = "two-step"


@pytest.mark.parametrize(("held_out", "count"), [(200, 200), (8, 200), (0, 50), (200, 1)])
def test_confirming_prompts_are_of_the_select_split_and_nobody_looks_at_them(held_out: int, count: int) -> None:
    known = [probe.prompt for probe in held_out_probes(world(), FAMILY, held_out)]
    known += [tokenizer.decode(r.tokens[1:]) for r in canary_requests(world())]
    probes = confirming_probes(world(), FAMILY, count, known)
    assert len(probes) == count == len({probe.id for probe in probes})
    assert {(probe.split, probe.family) for probe in probes} == {(Split.SELECT, FAMILY)}
    assert not {content_of(p.prompt) for p in probes} & set(map(content_of, known))
    sizes = Counter(probe.cluster for probe in probes).values()
    assert max(sizes) - min(sizes) <= 1 and len(sizes) == min(count, 36)


def test_another_wording_of_a_sum_is_the_same_prompt() -> None:
    assert content_of("work 3+14+2:") == content_of("14+2 then +3:") != content_of("14+2+4=")
    assert content_of("abc") != content_of("abd")


class _Asked(RolloutEngine):
    """Notes the version under which every prompt is asked."""

    def __init__(self) -> None:
        super().__init__(TINY)
        self.asked: list[tuple[int, tuple[int, ...]]] = []

    def generate(self, requests: Sequence[Request], sampling: Sampling, want: Want) -> list[Continuation]:
        """Continues requests."""
        self.asked += [(self.version, r.tokens) for r in requests]
        return super().generate(requests, sampling, want)


def test_they_are_asked_of_the_last_and_the_first_weights_when_the_run_is_over(tmp_path: Path) -> None:
    settings = SHORT.model_copy(update={"steps": 2, "held_out": 4, "confirm": 3})
    engine = _Asked()
    ended = run_loop(request(tmp_path, settings), lambda: engine)
    assert ended.confirmed is not None and ended.confirmed.rise.num_probes == 3
    written = RlResult.from_json((tmp_path / RESULT_FILE).read_text())
    assert (written.held_out, written.confirmed) == (ended.held_out, ended.confirmed)
    before, after = engine.asked[-3:], engine.asked[-6:-3]
    assert [tokens for _, tokens in before] == [tokens for _, tokens in after]
    assert {version for version, _ in before} == {0} and {version for version, _ in after} == {2}
    assert not {tokens for _, tokens in before} & {tokens for _, tokens in engine.asked[:-6]}


def test_confirming_changes_no_bit_of_the_run(tmp_path: Path) -> None:
    run_here(request(tmp_path / "a", SHORT.model_copy(update={"steps": 1})))
    run_here(request(tmp_path / "a", SHORT.model_copy(update={"steps": 2, "confirm": 2}), resume=True))
    run_here(request(tmp_path / "b", SHORT.model_copy(update={"steps": 2})))
    assert (tmp_path / "a" / STATE_FILE).read_bytes() == (tmp_path / "b" / STATE_FILE).read_bytes()


class _Mortal(RolloutEngine):
    """Dies when it is asked of the first weights again."""

    has_learned = False

    def generate(self, requests: Sequence[Request], sampling: Sampling, want: Want) -> list[Continuation]:
        """Continues requests."""
        self.has_learned |= self.version > 0
        if self.has_learned and self.version == 0:
            raise EngineDiedError("generate", "ended")
        return super().generate(requests, sampling, want)


def test_an_engine_that_dies_while_it_confirms_leaves_the_last_weights_in_the_state(tmp_path: Path) -> None:
    settings = SHORT.model_copy(update={"steps": 2, "confirm": 2})
    with pytest.raises(InputError, match="--resume"):
        run_loop(request(tmp_path / "dead", settings), lambda: _Mortal(TINY))
    run_here(request(tmp_path / "whole", settings))
    assert (tmp_path / "dead" / STATE_FILE).read_bytes() == (tmp_path / "whole" / STATE_FILE).read_bytes()
    run_here(request(tmp_path / "dead", settings, resume=True))
    results = [(tmp_path / name / RESULT_FILE).read_bytes() for name in ("dead", "whole")]
    assert results[0] == results[1]
