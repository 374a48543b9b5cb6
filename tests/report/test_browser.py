"""The page in a real browser: it loads from the disk without an error, draws its charts, and answers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lexforge.report import write_page

WAIT_S = 60


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium with its driver; both are packages of the operating system."""
    pytest.importorskip("selenium", reason="selenium is not installed")
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no Chromium with its driver (Debian: apt-get install chromium chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1400,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


def load(browser: Any, page: Path) -> None:
    """Open a page from the disk, and wait until its charts are drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(page.as_uri())
    ready = "return document.documentElement.dataset.ready === 'true'"
    WebDriverWait(browser, WAIT_S).until(lambda _: browser.execute_script(ready))


def problems(browser: Any) -> list[str]:
    """What the console has shown, except Bokeh's remarks that it is ready."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] != "INFO"]


def visible_text(browser: Any, selector: str) -> str:
    return str(browser.execute_script(f"return document.querySelector({selector!r}).innerText"))


def test_the_page_loads_and_draws_every_chart(browser: Any, run: Path) -> None:
    """A chart that Bokeh cannot read leaves an empty place and an error in the console."""
    load(browser, write_page(run))
    assert problems(browser) == []
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('.plot')].map(place => place.firstElementChild.offsetHeight)"
    )
    assert len(drawn) == 11
    assert min(drawn) > 60
    requests = browser.execute_script("return performance.getEntriesByType('resource').length")
    assert requests == 0


def test_the_explorer_answers_a_click_and_the_keyboard(browser: Any, run: Path) -> None:
    """The terms, the hits and the terms of each match come with the query that was chosen."""
    from selenium.webdriver.common.keys import Keys

    load(browser, write_page(run))
    assert "what is <b>q0</b> & why" in visible_text(browser, "#detail")
    browser.find_element("css selector", "#query-list li:nth-child(4) button").click()
    detail = visible_text(browser, "#detail")
    for text in (
        "what is <b>q3</b> & why",
        "heart",
        "1.500",
        "Own tokens without a weight: what",
        "relevant",
    ):
        assert text in detail
    field = browser.find_element("css selector", "#filter")
    field.send_keys("q11")
    assert visible_text(browser, "#filter-count") == "1 found"
    field.send_keys(Keys.TAB)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert "what is <b>q11</b> & why" in visible_text(browser, "#detail")
    assert problems(browser) == []


def test_a_click_on_a_point_shows_the_texts_of_the_query(browser: Any, run: Path) -> None:
    """The scatter chart is a way into the explorer; its lists do the same without a mouse."""
    from selenium.webdriver import ActionChains

    load(browser, write_page(run))
    plot = browser.find_element("css selector", "#duel-bm25-0")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", plot)
    # Where Bokeh has drawn the query that lost: 0.4 with BM25 and 0 after training.
    x, y = browser.execute_script(
        """
        const [view] = Object.values(Bokeh.index).filter(view => arguments[0].contains(view.el));
        const points = view.model.references();
        const source = [...points].find(model => model.name === "queries").data_source;
        const box = view.el.getBoundingClientRect(), place = arguments[0].getBoundingClientRect();
        const place_of = (scale, value) => scale.compute(value);
        return [
          view.frame.x_scale.compute(source.data.x[0]) + box.x - place.x - place.width / 2,
          view.frame.y_scale.compute(source.data.y[0]) + box.y - place.y - place.height / 2,
        ];
        """,
        plot,
    )
    before = visible_text(browser, "#detail h3")
    browser.find_element("css selector", "#query-list li:nth-child(5) button").click()
    assert visible_text(browser, "#detail h3") != before
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", plot)
    ActionChains(browser).move_to_element_with_offset(plot, round(x), round(y)).click().perform()
    assert visible_text(browser, "#detail h3") == "what is <b>q0</b> & why"
    browser.find_element("css selector", "#queries .picks button").click()  # the clearest win
    assert visible_text(browser, "#detail h3") == "what is <b>q11</b> & why"
    assert problems(browser) == []


def test_colours_follow_the_system_and_the_switch(browser: Any, run: Path) -> None:
    """Charts are drawn on a canvas: their axes change with the page, or they cannot be read."""
    colours = (
        "const axis = [...Object.values(Bokeh.index)[0].model.references()].find(m => m.type === 'LinearAxis');"
        "return [getComputedStyle(document.body).backgroundColor, axis.major_label_text_color]"
    )
    seen = []
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        load(browser, write_page(run))
        seen.append(browser.execute_script(colours))
    assert seen[0] != seen[1]
    switch = browser.find_element("css selector", "#theme")
    assert switch.get_attribute("aria-pressed") == "true"
    switch.click()
    assert browser.execute_script(colours) == seen[0]
    browser.execute_script("localStorage.clear()")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_is_wider_than_the_screen(
    browser: Any, run: Path, new_run: Callable[..., Path], tmp_path: Path, width: int
) -> None:
    """A telephone that scrolls sideways loses its reader; two runs are the widest page."""
    page = write_page(run, new_run(tmp_path / "second", lift=0.2))
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    load(browser, page)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert problems(browser) == []
