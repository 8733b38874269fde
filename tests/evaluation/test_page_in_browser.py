"""The report's page in a real browser.

COCA_TRAIN_CHROMIUM: path of a Chromium; COCA_TRAIN_AXE: path of axe.min.js (npm package axe-core), for the check of
accessibility. Needs playwright (pip), not playwright's own browsers.
"""

import os
from pathlib import Path

import pytest

from coca_train.report.render import write_report
from tests.evaluation.demo import document

CHROMIUM = os.environ.get("COCA_TRAIN_CHROMIUM", "")
AXE = os.environ.get("COCA_TRAIN_AXE", "")
WIDTHS = (1280, 360)
THEMES = ("light", "dark")
CONTROLS = "a[href], button, summary, [tabindex='0']"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="COCA_TRAIN_CHROMIUM names no browser")]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    return write_report(document(), tmp_path_factory.mktemp("report"))["report.html"].as_uri()


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api").sync_playwright().start()
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    yield browser
    browser.close()
    playwright.stop()


@pytest.fixture(params=[(width, theme) for width in WIDTHS for theme in THEMES], ids=lambda p: f"{p[0]}-{p[1]}")
def page(request, browser, address):
    """The page, opened; what it said and asked for is in page.said and page.asked."""
    width, theme = request.param
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme, reduced_motion="reduce")
    context.set_default_timeout(3000)
    page = context.new_page()
    page.messages, page.requests, page.width, page.theme = [], [], width, theme
    page.on("console", lambda message: page.messages.append(message.text))
    page.on("pageerror", lambda error: page.messages.append(str(error)))
    page.on("request", lambda request: page.requests.append(request.url))
    page.goto(address)
    yield page
    context.close()


def open_all(page):
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")


def test_says_and_asks_nothing(page, address):
    for button in page.query_selector_all("button"):
        if button.is_visible():
            button.click()
    open_all(page)
    page.wait_for_timeout(100)
    assert page.messages == []
    assert [url for url in page.requests if not url.startswith("data:")] == [address]


def test_never_wider_than_the_screen(page):
    open_all(page)
    page.click("button.notes")
    assert page.evaluate("document.documentElement.scrollWidth") == page.width
    outside = """() => [...document.querySelectorAll("body *")].filter(one => {
        const box = one.getBoundingClientRect();
        return box.width && box.right > innerWidth + 1 && !one.closest(".scroll, .skip, svg");
    }).map(one => one.outerHTML.slice(0, 80))"""
    assert page.evaluate(outside) == []


def test_every_control_is_reached_by_tab_and_shows_it(page):
    open_all(page)
    names = page.evaluate(
        f"""() => [...document.querySelectorAll("{CONTROLS}")].filter(one => one.offsetParent !== null)
        .map((one, index) => one.dataset.control = String(index))"""
    )
    assert len(names) > 30
    reached = []
    for _ in names:
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.dataset.control"))
        look = "getComputedStyle(document.activeElement).outlineStyle"
        assert page.evaluate(look) == "solid", page.evaluate("document.activeElement.outerHTML.slice(0, 100)")
    assert reached == names


def test_controls_do_what_they_say(page):
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(ground)
    page.click("#theme")
    assert page.evaluate(ground) != before
    assert page.inner_text("#theme") == ("Dark theme" if page.theme == "dark" else "Light theme")

    figures = (
        "[...document.querySelectorAll('#block-perplexity td:nth-of-type(2)')].map(one => one.firstChild.textContent)"
    )
    as_it_was = page.evaluate(figures)
    button = page.get_by_role("button", name="1,024", exact=True).first
    button.click()
    assert page.evaluate(figures)[:3] == ["20.81", "21.27", "23.22"]
    assert page.evaluate(figures)[-1] == "–"
    button.click()
    assert page.evaluate(figures)[0] == "411.50"
    assert page.evaluate(figures)[-1] == "–"
    button.click()
    assert page.evaluate(figures) == as_it_was

    visible = page.locator(".chart:visible g[data-line='0'] .stroke")
    assert visible.count() == 1
    page.get_by_role("button", name="RoPE", exact=True).click()
    assert not visible.is_visible()

    assert not page.locator(".note").first.is_visible()
    page.click("button.notes")
    assert page.locator(".note").first.is_visible()

    page.keyboard.press("Tab")
    page.click("#copy")
    page.get_by_text("Copied.").or_(page.get_by_text("Selected: copy it")).wait_for()


def test_downloads_are_in_the_page(page):
    with page.expect_download() as download:
        page.click("a[download='perplexity.csv']")
    assert Path(download.value.path()).read_text().startswith("model,frequencies,steps,512,")


def test_printed_it_is_light_and_whole(page):
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("#theme").is_visible()
    assert page.locator("table.data").first.is_visible()


@pytest.mark.skipif(not AXE, reason="COCA_TRAIN_AXE names no axe.min.js")
def test_axe_finds_nothing(page):
    open_all(page)
    page.click("button.notes")
    page.evaluate(Path(AXE).read_text(encoding="utf-8"))
    report = page.evaluate("axe.run(document)")
    assert [(one["id"], [node["html"][:120] for node in one["nodes"][:3]]) for one in report["violations"]] == []
    assert len(report["passes"]) > 20
