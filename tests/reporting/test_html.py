"""The HTML page holds everything, asks the network for nothing, and gives foreign text no way to act."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import random
import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from quantaudit.core.report import AuditReport
from quantaudit.core.verdict import Admission
from quantaudit.reporting.html import render_html
from quantaudit.reporting.palette import DARK, LIGHT, Palette
from quantaudit.reporting.sentences import SAFETY_WARNING

Pages = Callable[[str], str]
SAMPLES = ["admitted", "rejected", "undecided", "identical", "sparse", "unbounded", "hostile", "wide"]
VOID = {"meta", "link", "br", "input"}


class Document(HTMLParser):
    """Collects elements with their attributes, script texts and the visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif "style" not in self.open:
            self.text += data


@functools.cache
def read(page: str) -> Document:
    """Returns the document of a page; each is read once."""
    return Document(page)


@pytest.fixture(params=SAMPLES)
def page(request: pytest.FixtureRequest, pages: Pages) -> str:
    """Returns the page of every sample in turn."""
    return pages(request.param)


def test_it_is_small_and_well_formed(page: str) -> None:
    assert len(page.encode()) < 3_000_000
    assert page.startswith("<!doctype html>")
    assert read(page).open == []


def test_nothing_points_outside(page: str) -> None:
    document = read(page)
    ids = [a["id"] for _, a in document.elements if a.get("id")]
    assert len(ids) == len(set(ids))
    targets = [a[k] for _, a in document.elements for k in ("src", "href", "action", "srcset", "data") if k in a]
    assert all(t == "data:," or (str(t).startswith("#") and str(t)[1:] in ids) for t in targets)
    assert not re.search(r"url\(|@import", page[page.index("<style>") : page.index("</style>")])


def test_only_the_named_script_may_run(page: str) -> None:
    document = read(page)
    (policy,) = [a["content"] for t, a in document.elements if t == "meta" and "http-equiv" in a]
    run = [text for attributes, text in document.scripts if "type" not in attributes]
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in run]
    assert policy is not None and policy.startswith("default-src 'none'; script-src ")
    assert re.findall(r"'sha256-([^']+)'", policy) == digests
    assert len(digests) == 1 and "script-src 'unsafe" not in policy and "eval" not in policy


def test_foreign_text_makes_no_element(pages: Pages) -> None:
    usual = {tag for tag, _ in read(pages("admitted")).elements}
    document = read(pages("hostile"))
    assert {tag for tag, _ in document.elements} <= usual
    assert not [name for _, attributes in document.elements for name in attributes if name.startswith("on")]
    assert all(set(attributes) <= {"type", "id"} for attributes, _ in document.scripts)


def test_foreign_text_hides_nothing(pages: Pages) -> None:
    text = pages("hostile")
    assert "\x1b" not in text and "\u202e" not in text
    assert "\\x1b[31mred" in text and "\\u202eabc" in text


def test_the_cells_of_every_map_are_there_as_json(pages: Pages, admitted: AuditReport) -> None:
    (text,) = [text for attributes, text in read(pages("admitted")).scripts if "type" in attributes]
    tables = json.loads(text)
    assert [table["title"] for table in tables] == ["Weight error (dB)", "Load (share)", "Routing agreement (share)"]
    first = admitted.expert_maps[0]
    assert tables[0]["layers"] == list(first.layers)
    assert [len(row) for row in tables[0]["rows"]] == [len(row) for row in first.values]
    for told, value in zip(tables[0]["rows"][0], first.values[0], strict=True):
        assert told == (None if value is None else float(f"{value:.4g}"))


def test_headings_never_skip_a_level(page: str) -> None:
    levels = [int(tag[1]) for tag, _ in read(page).elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b <= a + 1 for a, b in zip(levels, levels[1:], strict=False))


def test_the_verdict_is_the_heading(page: str) -> None:
    body = Document(page[page.index("<body") : page.index("</html>")]).text
    assert re.match(r"\s*Skip to the gates\s*quantaudit[^\n]*\s*\S(ADMIT|REJECT|INCONCLUSIVE)\n", body)


def test_it_repeats_the_verdict_and_never_makes_one(rejected: AuditReport) -> None:
    verdict = rejected.verdict.model_copy(update={"admission": Admission.ADMIT})
    text = render_html(rejected.model_copy(update={"verdict": verdict}))
    assert '<body class="admit">' in text and "<title>ADMIT: " in text


def test_limits_come_before_pictures_and_proof(pages: Pages) -> None:
    text = pages("admitted")[pages("admitted").index("<body") :]
    marks = [
        "</span>ADMIT</span>",
        "What would change it</h2>",
        "What was not examined</h2>",
        "What it costs, in plain words</h2>",
        "<dt>gates pass</dt>",
        "Gates</h2>",
        "Alarms</h2>",
        "Controls</h2>",
    ]
    marks += ["Families of probes</h2>", "Answers that changed</h2>", "Diagnostics</h2>", "Ladder of bit widths</h2>"]
    marks += ["Layers and experts</h2>", "Along the layers</h2>", "Worst witnesses</h2>"]
    marks += ["Weights that differ</h2>", "How to read this</h2>", "Provenance</h2>"]
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)


def test_safety_is_warned_about_beside_its_clauses(pages: Pages) -> None:
    text = pages("rejected")
    assert text.index(SAFETY_WARNING) < text.index("gates pass</dt>")  # in plain words, where safety would be told
    text = text[text.index('<section id="gates"') :]
    assert text.index(SAFETY_WARNING) < text.index('<span class="name">refusal</span>')
    assert text.index(SAFETY_WARNING) > text.index('<span class="name">margin[long-recall]</span>')
    assert SAFETY_WARNING not in pages("admitted")


def test_every_clause_family_control_and_witness_is_there(pages: Pages, admitted: AuditReport) -> None:
    text = read(pages("admitted")).text
    named = [c.name for c in admitted.clauses] + [f.name for f in admitted.probes.families]
    named += [c.detail for c in admitted.controls] + [w.prompt for w in admitted.witnesses]
    named += [*admitted.not_examined, admitted.report_digest(), admitted.run.command, admitted.hi.weights_digest]
    assert [name for name in named if name not in text] == []


def test_differing_bits_are_marked(pages: Pages) -> None:
    assert "<code>0x3c<mark>6a</mark></code>" in pages("admitted")
    assert "<code>0x3c<mark>80</mark></code>" in pages("admitted")


def test_what_is_redacted_is_marked(pages: Pages, admitted: AuditReport) -> None:
    text = pages("admitted")
    num_flips = sum(flip.is_redacted for flip in admitted.flips)
    assert text.count('<article class="witness redacted">') == 1
    assert text.count('<li class="flip redacted"') == num_flips == 15
    assert text.count("text redacted") == 1 + num_flips


def test_outcomes_have_a_word_beside_their_colour(page: str) -> None:
    badges = re.findall(
        r'<span class="badge [a-z]+"><span class="mark" aria-hidden="true">(.*?)</span>(.*?)</span>', page
    )
    assert badges and all(mark and word for mark, word in badges)


def test_maps_too_large_to_tell_are_drawn_all_the_same(admitted: AuditReport) -> None:
    rng = random.Random(2)
    values = tuple(tuple(rng.random() for _ in range(896)) for _ in range(60))
    huge = admitted.expert_maps[0].model_copy(update={"layers": tuple(range(60)), "values": values})
    text = render_html(admitted.model_copy(update={"expert_maps": (huge,) * 5}))
    assert len(text.encode()) < 3_000_000
    assert text.count('class="grid"') == 5
    assert '<script type="application/json" id="cells">[]</script>' in text


def luminance(color: str) -> float:
    """Returns the relative luminance of a #rrggbb colour, as WCAG 2 defines it."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_text_can_be_read(palette: Palette) -> None:
    grounds = [palette.ground, palette.card]
    pairs = [(text, ground) for text in (palette.ink, palette.muted, palette.series) for ground in grounds]
    washes = [palette.passing_wash, palette.failing_wash, palette.undecided_wash]
    tones = [palette.passing, palette.failing, palette.undecided]
    pairs += [*zip(tones, washes, strict=True), *((tone, ground) for tone in tones for ground in grounds)]
    pairs += [(text, wash) for text in (palette.ink, palette.muted) for wash in washes]
    for text, ground in pairs:
        light, dark = sorted((luminance(text), luminance(ground)), reverse=True)
        # WCAG 2 level AA asks for 4.5 to 1.
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


def test_what_is_within_the_floor_is_said_and_muted(pages: Pages, admitted: AuditReport) -> None:
    rows = re.findall(
        r'<tr role="row"( class="within")?>\s*<th[^>]*><span class="name">(.*?)</span>(.*?)</th>', pages("admitted")
    )
    titles = {d.title.replace("'", "&#39;") for d in admitted.diagnostics}
    within = {title for muted, title, rest in rows if muted}
    assert {title for _, title, _ in rows} >= titles
    assert within == {"Change of the right token&#39;s probability, mean", "Experts without a token"}
    assert all(("within the floor" in rest) == bool(muted) for muted, title, rest in rows if title in titles)


def test_every_flip_and_diagnostic_and_series_is_there(pages: Pages, admitted: AuditReport) -> None:
    text = read(pages("admitted")).text
    named = [d.title for d in admitted.diagnostics] + [d.note for d in admitted.diagnostics]
    named += [s.title for s in admitted.series] + [f"probe {f.probe_id}" for f in admitted.flips]
    assert [name for name in named if name not in text] == []
    assert pages("admitted").count('<li class="flip') == len(admitted.flips)


def test_restricted_text_that_was_asked_for_is_folded(admitted: AuditReport) -> None:
    flip = admitted.flips[2]
    assert flip.family == "wrapped" and flip.is_redacted
    told = {"prompt": "the secret prompt", "is_redacted": False}
    witness = admitted.witnesses[2].model_copy(update=told)
    shown = admitted.model_copy(update={"flips": (flip.model_copy(update=told),), "witnesses": (witness,)})
    text = render_html(shown)
    assert text.count("the secret prompt") == 2
    assert len(re.findall(r'<details class="restricted">(?:(?!</details>).)*the secret prompt', text, re.S)) == 2


def test_repeated_looks_are_warned_about_first(admitted: AuditReport) -> None:
    run = admitted.run.model_copy(update={"earlier_audits": 3, "cached_controls": True})
    text = render_html(admitted.model_copy(update={"run": run}))
    assert text.index("This folder and those beside it already hold 3 audits") < text.index("What would change it</h2>")
    assert "controls were taken from an earlier run" in text
    assert "already hold " not in render_html(admitted)


def test_a_ladder_that_is_not_monotone_is_a_fault(admitted: AuditReport) -> None:
    assert admitted.ladder is not None
    broken = admitted.ladder.model_copy(update={"is_monotone": False})
    assert "look for a fault" in render_html(admitted.model_copy(update={"ladder": broken}))
    assert "look for a fault" not in render_html(admitted)
