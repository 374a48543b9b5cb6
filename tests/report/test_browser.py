"""The page in a real browser: it loads from the disk without an error, draws its charts, and answers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lexforge.report import write_page

WAIT_S = 60


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, new_run: Callable[..., Path]) -> Path:
    """The page of one run."""
    return write_page(new_run(tmp_path_factory.mktemp("page") / "first"))


def load(browser: Any, page: Path) -> None:
    """Open a page from the disk, and wait until its charts are drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(page.as_uri())
    ready = "return document.documentElement.dataset.ready === 'true'"
    WebDriverWait(browser, WAIT_S).until(lambda _: browser.execute_script(ready))
    browser.execute_script("document.documentElement.style.scrollBehavior = 'auto'")  # a click does not wait


def click(browser: Any, selector: str) -> None:
    """Click on an element in the middle of the window, where the bar at its top does not cover it."""
    element = browser.find_element("css selector", selector)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()


def problems(browser: Any) -> list[str]:
    """What the console has shown, except Bokeh's remarks that it is ready."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] != "INFO"]


def visible_text(browser: Any, selector: str) -> str:
    return str(browser.execute_script(f"return document.querySelector({selector!r}).innerText"))


def page_width(browser: Any) -> int:
    """The width of what can be scrolled to, in pixels."""
    return int(browser.execute_script("return document.documentElement.scrollWidth"))


def point_of(browser: Any, plot: Any) -> tuple[int, int]:
    """Where Bokeh has drawn the first point of a chart, in pixels from its middle."""
    x, y = browser.execute_script(
        """
        const [view] = Object.values(Bokeh.index).filter(view => arguments[0].contains(view.el));
        const points = [...view.model.references()].find(model => model.glyph?.type === "Scatter");
        const data = points.data_source.data;
        const box = view.el.getBoundingClientRect(), place = arguments[0].getBoundingClientRect();
        return [
          view.frame.x_scale.compute(data.x[0]) + box.x - place.x - place.width / 2,
          view.frame.y_scale.compute(data.y[0]) + box.y - place.y - place.height / 2,
        ];
        """,
        plot,
    )
    return round(x), round(y)


def test_the_page_loads_and_draws_every_chart(browser: Any, page: Path) -> None:
    """A chart that Bokeh cannot read leaves an empty place and an error in the console."""
    load(browser, page)
    assert problems(browser) == []
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('.plot')].map(place => place.firstElementChild.offsetHeight)"
    )
    assert len(drawn) == 12
    assert min(drawn) > 60
    requests = browser.execute_script("return performance.getEntriesByType('resource').length")
    assert requests == 0


def test_the_explorer_answers_a_click_and_the_keyboard(browser: Any, page: Path) -> None:
    """The terms, the hits and the terms of each match come with the query that was chosen."""
    from selenium.webdriver.common.keys import Keys

    load(browser, page)
    assert "what is <b>q0</b> & why" in visible_text(browser, "#detail")
    click(browser, "#query-list li:nth-child(4) button")
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


def test_a_click_on_a_point_shows_the_texts_of_the_query(browser: Any, page: Path) -> None:
    """The scatter chart is a way into the explorer; its lists do the same without a mouse."""
    from selenium.webdriver import ActionChains

    load(browser, page)
    plot = browser.find_element("css selector", "#duel-bm25-0")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    x, y = point_of(browser, plot)  # the query that lost: 0.4 with BM25 and 0 after training
    before = visible_text(browser, "#detail h3")
    click(browser, "#query-list li:nth-child(5) button")
    assert visible_text(browser, "#detail h3") != before
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    ActionChains(browser).move_to_element_with_offset(plot, x, y).click().perform()
    assert visible_text(browser, "#detail h3") == "what is <b>q0</b> & why"
    click(browser, "#queries .picks button")  # the clearest win
    assert visible_text(browser, "#detail h3") == "what is <b>q11</b> & why"
    assert problems(browser) == []


def test_names_of_a_foreign_run_are_shown_and_not_run(
    browser: Any, hostile_run: Path, tmp_path: Path
) -> None:
    """Bokeh makes HTML of its tooltips, below elements that a search of the page does not reach."""
    from selenium.webdriver import ActionChains
    from selenium.webdriver.support.ui import WebDriverWait

    second = shutil.copytree(hostile_run, tmp_path / hostile_run.name.replace("run", "rerun"))
    shown = """
        const inside = root => [...root.querySelectorAll("*")].flatMap(
            element => [element, ...(element.shadowRoot ? inside(element.shadowRoot) : [])]);
        const all = inside(document);
        if (all.some(element => element.tagName === "IMG")) return ["an image of the run"];
        const values = all.filter(element => element.classList.contains("bk-tooltip-row-value"));
        return values.map(value => value.parentElement.innerText);
    """
    two = write_page(hostile_run, second, output=tmp_path / "page.html")
    for page, chart, name, value in (
        (write_page(hostile_run), "headline", "nDCG@10 <img", "0.400"),
        (two, "duel-runs", "rerun <img", "0.000"),
    ):
        load(browser, page)
        plot = browser.find_element("css selector", f"#{chart}")
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
        x, y = point_of(browser, plot)
        ActionChains(browser).move_to_element_with_offset(plot, x, y).perform()
        tooltips = WebDriverWait(browser, WAIT_S).until(lambda opened: opened.execute_script(shown))
        assert [row for row in tooltips if name in row and value in row], tooltips
        assert browser.title.startswith("run <img")
        assert problems(browser) == []


def test_a_line_can_be_hidden(browser: Any, page: Path) -> None:
    """A large part of the loss hides how the small ones move."""
    load(browser, page)
    lines = """
        const models = Object.values(Bokeh.index).flatMap(view => [...view.model.references()]);
        const drawn = models.filter(model => model.type === "GlyphRenderer");
        return drawn.filter(model => model.name === "flops document").map(model => model.visible)
    """
    assert browser.execute_script(lines) == [True] * 4  # line and points, of parts and of shares
    click(browser, '[data-chart="parts"][data-series="flops document"]')
    pressed = "[...document.querySelectorAll('[data-chart=parts]')].map(button => button.ariaPressed)"
    assert browser.execute_script(f"return {pressed}") == ["true", "false"]
    assert sorted(browser.execute_script(lines)) == [False, False, True, True]


def test_colours_follow_the_system_and_the_switch(browser: Any, page: Path) -> None:
    """Charts are drawn on a canvas: their axes change with the page, or they cannot be read."""
    colours = """
        const models = Object.values(Bokeh.index).flatMap(view => [...view.model.references()]);
        const axes = models.filter(model => model.type.endsWith("Axis"));
        const colours = new Set(axes.map(axis => axis.major_label_text_color));
        return [getComputedStyle(document.body).backgroundColor, ...colours]
    """
    seen = []
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        load(browser, page)
        seen.append(browser.execute_script(colours))
    assert seen[0] != seen[1]
    assert [len(pair) for pair in seen] == [2, 2]  # all axes have one colour
    switch = browser.find_element("css selector", "#theme")
    assert switch.get_attribute("aria-pressed") == "true"
    switch.click()
    assert browser.execute_script(colours) == seen[0]
    browser.execute_script("localStorage.clear()")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_nothing_is_wider_than_the_screen(browser: Any, new_run: Callable[..., Path], tmp_path: Path) -> None:
    """A telephone that scrolls sideways loses its reader; two runs are the widest page."""
    from selenium.webdriver.support.ui import WebDriverWait

    runs = [new_run(tmp_path / name, lift=lift) for name, lift in (("first", 0.3), ("second", 0.2))]
    load(browser, write_page(*runs))
    for width in (1400, 400):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        # Bokeh draws its charts anew some time after the window has changed.
        fits = WebDriverWait(browser, WAIT_S)
        fits.until(lambda _, width=width: page_width(browser) <= width, f"wider than {width} pixels")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert problems(browser) == []
