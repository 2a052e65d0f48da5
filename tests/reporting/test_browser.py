"""The page works in a browser from disk: charts drawn, no error, no request, no sideways scrolling."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")

QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 180_000  # milliseconds: a shared machine may be busy, and nothing here is about speed
DRAWN = "[...document.querySelectorAll('figure.chart')].every(figure => figure.dataset.drawn)"


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
        page.wait_for_function(DRAWN)


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
def test_it_draws_without_error_or_request(name: str, visit: Callable[[str], Visit]) -> None:
    opened = visit(name)
    assert (opened.said, opened.asked) == ([], [opened.address])
    assert opened.page.evaluate("window.pwned === undefined")


@pytest.mark.parametrize("name", ["rejected", "hostile"])
def test_the_page_never_scrolls_sideways(name: str, visit: Callable[[str], Visit]) -> None:
    page = visit(name).page
    for width in (360, 600, 720, 800, 1080, 1081, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(150)  # charts follow the window after a moment
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_charts_have_marks_and_replace_the_pictures(visit: Callable[[str], Visit]) -> None:
    page = visit("admitted").page
    cells = page.locator("#chart-map-1 .drawing svg .mark-rect path").count()
    assert cells >= 5 * 64  # one for every expert, and the legend
    assert page.locator("figure.chart .picture:visible").count() == 0


def test_a_cell_tells_its_numbers(visit: Callable[[str], Visit]) -> None:
    page = visit("admitted").page
    page.locator("#chart-map-1 .drawing svg .mark-rect path").nth(40).hover()
    tooltip = page.locator("#vg-tooltip-element.visible").inner_text()
    assert "Weight error (dB)" in tooltip and "Routing agreement (share)" in tooltip


def test_charts_follow_the_reader_from_light_to_dark(visit: Callable[[str], Visit]) -> None:
    page = visit("admitted").page
    fill = "getComputedStyle(document.querySelector('#chart-map-1 .drawing .mark-rect path')).fill"
    light = page.evaluate(fill)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(fill) != light
    page.emulate_media(color_scheme="light")


def test_a_canvas_follows_too(visit: Callable[[str], Visit]) -> None:
    page = visit("wide").page
    shot = "document.querySelector('#chart-map-1 canvas').toDataURL()"
    light = page.evaluate(shot)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"light => {shot} !== light", arg=light)


def test_the_keyboard_reaches_the_gates_first(visit: Callable[[str], Visit]) -> None:
    page = visit("rejected").page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#gates"


def test_without_scripts_the_pictures_stay(browser: Browser, pages: Callable[[str], str], tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(pages("admitted"))
    page = browser.new_page(java_script_enabled=False)
    page.goto(path.as_uri(), timeout=PATIENCE)
    assert page.locator("figure.chart .picture svg:visible").count() == 6
