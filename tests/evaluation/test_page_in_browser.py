"""The report's page in a real browser.

COCA_TRAIN_CHROMIUM: path of a Chromium; COCA_TRAIN_AXE: path of axe.min.js (npm package axe-core), for the check of
accessibility. Needs playwright (pip), not playwright's own browsers.
"""

import os
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from coca_train.report.blocks import Row, Section, Table, Value
from coca_train.report.render import write_report
from tests.evaluation.demo import document

CHROMIUM = os.environ.get("COCA_TRAIN_CHROMIUM", "")
AXE = os.environ.get("COCA_TRAIN_AXE", "")
SCREENS = ((1280, 800), (390, 844), (360, 640))
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


@pytest.fixture(params=list(product(SCREENS, THEMES)), ids=lambda p: f"{p[0][0]}-{p[1]}")
def page(request, browser, address):
    """The page, opened; what it said and asked for is in page.said and page.asked."""
    (width, height), theme = request.param
    screen = {"width": width, "height": height}
    context = browser.new_context(viewport=screen, color_scheme=theme, reduced_motion="reduce")
    context.set_default_timeout(3000)
    page = context.new_page()
    page.messages, page.requests, page.width, page.height, page.theme = [], [], width, height, theme
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


def test_the_first_screen_has_verdicts_a_picture_and_a_table(page):
    """Whole the first two, of the table its head and a row at least; what was run is a click away."""
    if page.height < 800:
        pytest.skip("a smaller screen than those the page is made for")

    def box(what):
        return page.locator(what).first.bounding_box()

    verdict, picture, head = box(".verdicts li"), box(".lead .chart:visible"), box(".lead .block > .scroll tbody tr")
    for one in (verdict, picture, head):
        assert one["y"] >= 0 and one["y"] + one["height"] <= page.height, (one, page.height)
    assert picture["x"] >= 0 and picture["x"] + picture["width"] <= page.width
    assert not page.locator("#command").is_visible()
    page.get_by_text("What was run").click()
    assert page.locator("#command").is_visible()
    assert page.locator(".few").evaluate("one => one.open") == (page.width > 704)


def test_a_curve_that_is_pointed_at_shows_its_interval(page):
    """With the pointer or the keyboard; and every curve has a panel of its own."""
    band = page.locator(".chart:visible g[data-line='2'] .band")
    opacity = "one => Number(getComputedStyle(one).opacity)"
    assert band.evaluate(opacity) == 0
    page.get_by_role("button", name="ALiBi", exact=True).focus()
    assert band.evaluate(opacity) > 0.1
    other = page.locator(".chart:visible g[data-line='0']")
    assert other.evaluate(opacity) < 0.5
    page.locator("#theme").focus()
    assert band.evaluate(opacity) == 0 and other.evaluate(opacity) == 1
    open_all(page)
    panels = page.locator(".each svg.panel")
    assert panels.count() == 8
    shown = ".each svg.panel .band"
    assert page.locator(shown).count() == 5 and page.locator(shown).first.evaluate(opacity) > 0.1


def test_what_is_folded_is_printed(page):
    """The browser tells the page; what was folded is folded again."""
    count = "document.querySelectorAll('.fold[open], .each[open]').length"
    assert page.evaluate(count) == 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(count) == 3
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(count) == 0


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
    assert page.inner_text("#theme .sr") == ("Dark theme" if page.theme == "dark" else "Light theme")

    ours = "#block-perplexity > .scroll td:nth-of-type(2)"
    figures = f"[...document.querySelectorAll('{ours}')].map(one => one.firstChild.textContent)"
    as_it_was = page.evaluate(figures)
    button = page.get_by_role("button", name="1,024", exact=True).first
    button.click()
    assert page.evaluate(figures)[:3] == ["23.22", "26.23", "31.18"]
    assert page.evaluate(figures)[-1] == "–"
    button.click()
    assert page.evaluate(figures)[0] == "90.30"
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

    page.get_by_text("What was run").click()
    page.click("#copy")
    page.get_by_text("Copied.").or_(page.get_by_text("Selected: copy it")).wait_for()


def test_signs_by_length_fit_on_a_telephone(page, tmp_path):
    lengths = ("32", "64", "128", "256", "512", "1,024", "2,048")
    row = Row(label=("CoCA + dynamic NTK (α 4)", "holds"), values=tuple(Value("✓") for _ in lengths))
    table = Table(name="answers", title="", label_columns=("model", "part"), columns=lengths, rows=(row,) * 4)
    said = replace(document(), sections=(Section(title="", blocks=(table,)),))
    page.goto(write_report(said, tmp_path)["report.html"].as_uri())
    wide = page.locator(".answers .scroll").evaluate("one => one.scrollWidth - one.clientWidth")
    assert wide <= 0 or page.width < 390


def test_downloads_are_in_the_page(page):
    with page.expect_download() as download:
        page.click("a[download='perplexity.csv']")
    assert Path(download.value.path()).read_text().startswith("model,frequencies,steps,512,")


def test_printed_it_is_light_and_whole(page):
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("#theme").is_visible()
    assert page.locator(".block > .scroll table.data").first.is_visible()


@pytest.mark.skipif(not AXE, reason="COCA_TRAIN_AXE names no axe.min.js")
def test_axe_finds_nothing(page):
    open_all(page)
    page.click("button.notes")
    page.evaluate(Path(AXE).read_text(encoding="utf-8"))
    report = page.evaluate("axe.run(document)")
    assert [(one["id"], [node["html"][:120] for node in one["nodes"][:3]]) for one in report["violations"]] == []
    assert len(report["passes"]) > 20
