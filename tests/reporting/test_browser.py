"""The page works in a browser from disk: no error, no request, no scrolling sideways.

Charts tell their numbers, flips can be filtered, text can be read in light and dark, and print unfolds.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from quantaudit.core.report import AuditReport
from quantaudit.reporting.html import render_html

Scheme: TypeAlias = Literal["light", "dark"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine to open the page with")

QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 60_000  # milliseconds: a shared machine may be busy, and nothing here is about speed
READY = "document.documentElement.dataset.ready === 'yes'"
# Every text with a contrast below what WCAG 2 level AA asks for: 4.5 to 1, or 3 to 1 from 24 pixels on.
CONTRAST = """() => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const color = parse(getComputedStyle(e).backgroundColor);
      if (color.length === 3 || color[3] === 1) { return color; }
    }
    return [255, 255, 255];
  };
  const bad = [];
  document.querySelectorAll('body *:not(script):not(style)').forEach(element => {
    const own = [...element.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !element.getClientRects().length) { return; }
    const style = getComputedStyle(element), isText = element.tagName === 'text';
    const [a, b] = [light(parse(isText ? style.fill : style.color)), light(ground(element))].sort((x, y) => y - x);
    const least = parseFloat(style.fontSize) >= 24 ? 3 : 4.5;
    if ((a + 0.05) / (b + 0.05) < least) { bad.push(element.textContent.trim().slice(0, 40)); }
  });
  return bad;
}"""
BUBBLE = "#bubble:not([hidden])"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Starts one browser for the file."""
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield launched
        launched.close()


class Visit:
    """A page opened from disk, with what it said and asked for."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page, self.address = page, path.as_uri()
        self.said: list[str] = []
        self.asked: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(self.address)
        wait_until(page, READY)


def wait_until(page: Page, expression: str) -> None:
    """Waits for an expression; the page forbids the evaluation that Playwright's own polling needs."""
    for _ in range(300):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"never true: {expression}")


@pytest.fixture(scope="module")
def visit(
    browser: Browser, pages: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Visit]:
    """Returns what opens the page of a sample; each is opened once, in a window of the usual size."""
    folder = tmp_path_factory.mktemp("pages")

    @functools.cache
    def open_page(name: str) -> Visit:
        path = folder / f"{name}.html"
        path.write_text(pages(name))
        return Visit(browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light"), path)

    return open_page


@pytest.mark.parametrize("name", ["admitted", "rejected", "sparse", "unbounded", "hostile", "wide"])
def test_it_opens_without_error_or_request(name: str, visit: Callable[[str], Visit]) -> None:
    opened = visit(name)
    assert (opened.said, opened.asked) == ([], [opened.address])
    assert opened.page.evaluate("window.pwned === undefined")


@pytest.mark.parametrize("name", ["admitted", "rejected", "hostile", "wide"])
def test_the_page_never_scrolls_sideways(name: str, visit: Callable[[str], Visit]) -> None:
    page = visit(name).page
    for width in (320, 390, 600, 720, 800, 1080, 1081, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 1280, "height": 900})


@pytest.mark.parametrize("name", ["admitted", "rejected", "undecided"])
def test_the_first_screen_of_a_phone_tells_verdict_change_and_limits(
    name: str, visit: Callable[[str], Visit], request: pytest.FixtureRequest
) -> None:
    page = visit(name).page
    page.set_viewport_size({"width": 390, "height": 844})
    try:
        for selector in ("h1", ".sentence", "#change", "#change + ul li", "#limits", "#limits + ul li"):
            box = page.locator(selector).first.bounding_box()
            assert box is not None and box["y"] + box["height"] <= 844, selector
    finally:
        page.set_viewport_size({"width": 1280, "height": 900})


def test_charts_are_as_wide_as_their_place(visit: Callable[[str], Visit]) -> None:
    page = visit("admitted").page
    sizes = (
        "[...document.querySelectorAll('.plot')].map(p => [p.getBoundingClientRect().width, p.parentNode.clientWidth])"
    )
    pairs = page.evaluate(sizes)
    assert len(pairs) == 1 + 2 + 5 + 3 + 2
    assert all(plot == place for plot, place in pairs)


def test_a_cell_tells_its_numbers(visit: Callable[[str], Visit], admitted: AuditReport) -> None:
    page = visit("admitted").page
    grid = page.locator("#chart-map-1 svg.grid")
    grid.scroll_into_view_if_needed()
    box = grid.evaluate("g => { const b = g.ownerSVGElement.getBoundingClientRect(); return [b.x, b.y, b.width]; }")
    padding = page.locator("#chart-map-1 .plot").evaluate("p => parseFloat(getComputedStyle(p).paddingLeft)")
    right = page.locator("#chart-map-1 .plot").evaluate("p => parseFloat(getComputedStyle(p).paddingRight)")
    top = grid.evaluate("g => g.y.baseVal.value")
    x = box[0] + padding + (40 + 0.5) / 64 * (box[2] - padding - right)
    page.mouse.move(x, box[1] + top + 26 * 2.5)
    told = page.locator(BUBBLE).inner_text().splitlines()
    value = admitted.expert_maps[0].values[2][40]
    assert told[0] == "layer 3, expert 40"
    assert value is not None and told[1] == f"Weight error (dB): {value:.4g}"
    assert told[2].startswith("Load (share): ") and told[3].startswith("Routing agreement (share): ")


def test_the_arrow_keys_walk_through_cells_and_rows(visit: Callable[[str], Visit]) -> None:
    page = visit("admitted").page
    page.locator("#chart-map-1 .plot").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert page.locator(BUBBLE).inner_text().startswith("layer 2, expert 1\n")
    page.keyboard.press("Escape")
    assert page.locator(BUBBLE).count() == 0
    page.locator("#chart-forest .plot").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.locator(BUBBLE).inner_text().startswith("degeneracy\n")
    page.keyboard.press("Escape")


def test_a_row_of_the_forest_tells_its_interval(visit: Callable[[str], Visit]) -> None:
    page = visit("admitted").page
    row = page.locator("#chart-forest [data-tip^='fidelity']")
    row.scroll_into_view_if_needed()
    page.wait_for_timeout(200)  # a page that scrolls below the pointer hushes it
    row.hover()
    assert "interval: [+0.0015, +0.0077]" in page.locator(BUBBLE).inner_text()


def flips_shown(page: Page) -> int:
    return page.locator(".flip:visible").count()


def test_flips_are_shown_a_few_at_a_time(visit: Callable[[str], Visit]) -> None:
    page = visit("admitted").page
    assert flips_shown(page) == 12
    assert page.locator("#flip-count").inner_text() == "12 of 45 shown."
    page.locator("#flip-more").click()
    assert flips_shown(page) == 24
    assert page.evaluate("[...document.querySelectorAll('.flip')].indexOf(document.activeElement)") == 12
    page.locator("#flip-filter button").click()
    wait_until(page, "document.querySelectorAll('.flip:not([hidden])').length === 12")


def test_the_filter_leaves_what_was_asked_for(visit: Callable[[str], Visit]) -> None:
    page = visit("admitted").page
    page.locator("select[name=family]").select_option("facts")
    page.locator("select[name=change]").select_option("right to wrong")
    assert flips_shown(page) == 5
    assert {t.split()[0] for t in page.locator(".flip:visible .what").all_inner_texts()} == {"facts"}
    page.locator("input[name=words]").fill("WRONG 10")
    assert flips_shown(page) == 1 and page.locator("#flip-count").inner_text() == "1 of 1 shown, out of 45."
    page.locator("input[name=words]").fill("no such text")
    assert flips_shown(page) == 0 and page.locator("#flip-count").inner_text() == "None fits."
    page.locator("#flip-filter button").click()
    wait_until(page, "document.querySelectorAll('.flip:not([hidden])').length === 12")


def test_the_keyboard_reaches_the_gates_first_and_the_filter_in_reading_order(
    browser: Browser, pages: Callable[[str], str], tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    path.write_text(pages("admitted"))
    page = browser.new_page()
    page.goto(path.as_uri(), timeout=PATIENCE)
    wait_until(page, READY)
    name = "(e => e.getAttribute('href') || e.getAttribute('name') || e.getAttribute('type') || e.id)"
    reached: list[str] = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(str(page.evaluate(f"{name}(document.activeElement)")))
        if reached[-1] == "words":
            break
    assert reached[0] == "#gates"
    assert reached[-3:] == ["family", "change", "words"]
    page.keyboard.type("wrong 9")
    assert flips_shown(page) == 1  # sorting 9: the restricted text of 12, 15 ... is redacted
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(scheme: Scheme, visit: Callable[[str], Visit]) -> None:
    for name in ("admitted", "rejected", "undecided"):
        page = visit(name).page
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(CONTRAST) == []
        page.emulate_media(color_scheme="light")


def test_charts_follow_the_reader_from_light_to_dark(visit: Callable[[str], Visit]) -> None:
    page = visit("admitted").page
    fill = "getComputedStyle(document.querySelector('#chart-map-1 .grid path')).fill"
    light = page.evaluate(fill)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(fill) != light
    page.emulate_media(color_scheme="light")


def test_print_unfolds_everything_but_restricted_text(browser: Browser, admitted: AuditReport, tmp_path: Path) -> None:
    told = admitted.flips[2].model_copy(update={"prompt": "the secret prompt", "is_redacted": False})
    path = tmp_path / "page.html"
    path.write_text(render_html(admitted.model_copy(update={"flips": (told,)})))
    page = browser.new_page()
    page.goto(path.as_uri(), timeout=PATIENCE)
    wait_until(page, READY)
    state = "s => [...document.querySelectorAll(s)].map(d => d.open)"
    usual, restricted = "details:not(.restricted)", "details.restricted"
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert set(page.evaluate(state, usual)) == {True} and set(page.evaluate(state, restricted)) == {False}
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert set(page.evaluate(state, usual)) == {False}
    assert not page.get_by_text("the secret prompt").is_visible()
    page.locator("details.restricted summary").first.press("Enter")
    assert page.get_by_text("the secret prompt").is_visible()
    page.close()


def test_without_scripts_everything_is_there_but_the_filter(
    browser: Browser, pages: Callable[[str], str], tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    path.write_text(pages("admitted"))
    page = browser.new_page(java_script_enabled=False)
    page.goto(path.as_uri(), timeout=PATIENCE)
    assert page.locator(".plot:visible").count() == 1 + 2 + 5 + 3 + 2
    assert flips_shown(page) == 45
    assert page.locator("#flip-filter:visible, #flip-more:visible").count() == 0
    page.close()
