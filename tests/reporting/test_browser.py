"""The page works in a browser from disk: charts drawn, no error, no request, no sideways scrolling."""

from __future__ import annotations

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

    def __init__(self, browser: Browser, path: Path, *, width: int, scheme: str) -> None:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        self.page: Page = context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_function(DRAWN, timeout=60_000)


@pytest.fixture
def visit(browser: Browser, pages: Callable[[str], str], tmp_path: Path) -> Iterator[Callable[..., Visit]]:
    """Returns what opens a sample's page; everything opened is closed in the end."""
    visits: list[Visit] = []

    def open_page(name: str, *, width: int = 1280, scheme: str = "light") -> Visit:
        path = tmp_path / f"{name}.html"
        path.write_text(pages(name))
        visits.append(Visit(browser, path, width=width, scheme=scheme))
        return visits[-1]

    yield open_page
    for opened in visits:
        opened.page.context.close()


@pytest.mark.parametrize("name", ["admitted", "rejected", "sparse", "unbounded", "hostile", "wide"])
def test_it_draws_without_error_or_request(name: str, visit: Callable[..., Visit], tmp_path: Path) -> None:
    opened = visit(name)
    assert opened.said == []
    assert opened.asked == [(tmp_path / f"{name}.html").as_uri()]
    assert opened.page.evaluate("window.pwned === undefined")


@pytest.mark.parametrize("name", ["rejected", "hostile"])
def test_the_page_never_scrolls_sideways(name: str, visit: Callable[..., Visit]) -> None:
    page = visit(name, width=360).page
    for width in (360, 600, 720, 800, 1080, 1081, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(150)  # charts follow the window after a moment
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_charts_have_marks_and_replace_the_pictures(visit: Callable[..., Visit]) -> None:
    page = visit("admitted").page
    cells = page.locator("#chart-map-1 .drawing svg .mark-rect path").count()
    assert cells >= 5 * 64  # one for every expert, and the legend
    assert page.locator("figure.chart .picture:visible").count() == 0


def test_a_cell_tells_its_numbers(visit: Callable[..., Visit]) -> None:
    page = visit("admitted").page
    page.locator("#chart-map-1 .drawing svg .mark-rect path").nth(40).hover()
    tooltip = page.locator("#vg-tooltip-element.visible").inner_text(timeout=5000)
    assert "Weight error (dB)" in tooltip and "Routing agreement (share)" in tooltip


def test_dark_and_light_differ_in_the_charts_too(visit: Callable[..., Visit]) -> None:
    fill = "getComputedStyle(document.querySelector('#chart-map-1 .drawing .mark-rect path')).fill"
    assert visit("admitted").page.evaluate(fill) != visit("admitted", scheme="dark").page.evaluate(fill)


def test_the_keyboard_reaches_the_gates_first(visit: Callable[..., Visit]) -> None:
    page = visit("admitted").page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#gates"


def test_without_scripts_the_pictures_stay(browser: Browser, pages: Callable[[str], str], tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(pages("admitted"))
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.locator("figure.chart .picture svg:visible").count() == 6
    context.close()
