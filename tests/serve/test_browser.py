"""The search page in a real browser: it searches, goes back, shows texts as texts, and fits every screen."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from lexforge.common.types import Passage
from lexforge.corpus import QueryResult
from lexforge.serve import create_app

WAIT_S = 60


@pytest.fixture(scope="module", autouse=True)
def window(browser: Any) -> None:
    """A window as wide as that of a small screen."""
    browser.set_window_size(1200, 900)


def status(browser: Any) -> str:
    return str(browser.execute_script("return document.getElementById('status').textContent"))


def until_status(browser: Any, text: str) -> None:
    """Wait until the line of the state says something."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, WAIT_S).until(lambda _: text in status(browser))


def load(browser: Any, address: str, query: str | None = None, text: str = "The best") -> None:
    """Open the page, and wait until it says what it has found."""
    browser.get(address if query is None else f"{address}/?q={quote(query)}")
    until_status(browser, text)


def problems(browser: Any) -> list[str]:
    """What the console has shown: errors of the script, and what the policy has kept from running."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] != "INFO"]


def texts(browser: Any, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map(element => element.textContent)"
    return list(browser.execute_script(script, selector))


def field(browser: Any) -> Any:
    return browser.find_element("css selector", "#q")


def test_a_search_by_the_keyboard(browser: Any, address: str) -> None:
    """A slash goes to the field, Enter searches, and reloading and going back show the same query."""
    from selenium.webdriver.common.keys import Keys

    load(browser, address, text="Type a question")
    assert "7 passages" in texts(browser, "#served")[0]
    assert browser.switch_to.active_element == field(browser)
    browser.execute_script("document.activeElement.blur()")
    browser.find_element("css selector", "body").send_keys("/")
    assert browser.switch_to.active_element == field(browser)
    field(browser).send_keys("search the tree", Keys.ENTER)
    until_status(browser, "The best 7 of 7 passages")
    first = texts(browser, "#hits h3")
    assert len(first) == 7
    assert browser.current_url.endswith("/?q=search+the+tree")
    assert browser.title == "search the tree · lexforge"
    field(browser).clear()
    field(browser).send_keys("서울/검색", Keys.ENTER)  # a slash in the field is a slash
    until_status(browser, "The best")
    assert "%2F" in browser.current_url
    browser.back()
    until_status(browser, "The best")
    assert field(browser).get_attribute("value") == "search the tree"
    browser.refresh()
    until_status(browser, "The best")
    assert texts(browser, "#hits h3") == first
    browser.back()
    until_status(browser, "Type a question")
    assert texts(browser, "#hits h3") == []
    assert problems(browser) == []


def test_the_page_shows_what_the_server_answers(browser: Any, address: str) -> None:
    """Marks stand at their words, also behind characters that take two units of JavaScript."""
    load(browser, address, "search the tree")
    answer = browser.execute_async_script(
        "const done = arguments[0]; fetch('search?q=search+the+tree').then(a => a.json()).then(done)"
    )
    assert texts(browser, ".snippet") == [hit["snippet"] for hit in answer["hits"]]
    assert texts(browser, ".score") == [f"score {hit['score']:.3f}" for hit in answer["hits"]]
    for own in (True, False):
        words = [
            hit["snippet"][start:end]
            for hit in answer["hits"]
            for start, end, is_own in hit["marks"]
            if is_own == own
        ]
        assert words
        assert texts(browser, f".snippet mark{'.own' if own else ':not(.own)'}") == words
    chips = browser.execute_script(
        "return [...document.querySelectorAll('#hits > li')].map(hit => "
        "[...hit.querySelectorAll('.chips li')].map(chip => "
        "[chip.querySelector('bdi').textContent, chip.classList.contains('own')]))"
    )
    assert chips == [[[term["term"], term["own"]] for term in hit["terms"]] for hit in answer["hits"]]
    own_style, added_style = (
        browser.execute_script(
            "const style = getComputedStyle(document.querySelector(arguments[0]));"
            "return [style.textDecorationStyle, style.fontWeight]",
            selector,
        )
        for selector in (".snippet mark.own", ".snippet mark:not(.own)")
    )
    assert own_style[0] != added_style[0], "told apart without colours"
    assert problems(browser) == []


def test_texts_of_the_corpus_are_shown_and_not_run(
    browser: Any, address: str, passages: dict[str, Passage]
) -> None:
    """A document from the web must not run code in the browser of the one who finds it."""
    load(browser, address, "sort the list <script>alert(1)</script>")
    hostile = passages['d2"<b>']
    assert hostile.text in texts(browser, ".snippet")
    assert any(title.endswith(hostile.title) for title in texts(browser, "#hits h3"))
    found = "return document.querySelectorAll('#main script, #main img, #main h3 b').length"
    assert browser.execute_script(found) == 0
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 2
    # the right-to-left title stands right, its neighbours left
    directions = browser.execute_script(
        "return [...document.querySelectorAll('.snippet')].map(text => getComputedStyle(text).direction)"
    )
    assert sorted(set(directions)) == ["ltr", "rtl"]
    assert problems(browser) == []


def test_the_policy_stops_a_script_that_is_planted(browser: Any, address: str) -> None:
    """The second fence, should text ever become HTML."""
    load(browser, address, "tree")
    browser.execute_script(
        "const image = '<img src=x onerror=\"window.ran = 1\">';"
        "document.getElementById('main').insertAdjacentHTML('beforeend', image);"
        "const script = document.createElement('script'); script.textContent = 'window.ran = 1';"
        "document.body.append(script)"
    )
    assert browser.execute_script("return window.ran") is None
    assert any("Content Security Policy" in message for message in problems(browser))


def test_refusals_and_failures_are_sentences(
    browser: Any,
    index_folder: Path,
    serving: Callable[[Any], AbstractContextManager[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user sees what the server says, or that it says nothing."""
    app = create_app(index_folder, max_query_length=30)
    with serving(app) as address:
        load(
            browser, address, "a" * 31, "There is no answer: the query q may have 30 characters; received 31."
        )
        searcher = app.state.index.current().searcher
        monkeypatch.setattr(searcher, "answer", lambda queries, k: [QueryResult([], []) for _ in queries])
        load(browser, address, "tree", "Nothing was found in 7 passages: none shares a term")
        monkeypatch.setattr(searcher, "answer", None)
        load(browser, address, "tree", "There is no answer: the search failed")
        assert texts(browser, "#hits li") == []
        problems(browser)
    browser.find_element("css selector", "button").click()
    until_status(browser, "The server does not answer.")
    problems(browser)


def test_more_hits_are_shown_on_demand(
    browser: Any,
    make_index: Callable[..., Path],
    serving: Callable[[Any], AbstractContextManager[str]],
    tmp_path: Path,
) -> None:
    """Ten at first; the reader of a screen goes on at the first new one, up to the limit of the server."""
    words = "sort list array search index query document vector sparse dense token model train loss".split()
    many = {f"d{n}": Passage("", f"{words[n % 14]} {words[n // 14]} tree", f"d{n}") for n in range(40)}
    with serving(create_app(make_index(tmp_path / "index", many), max_k=25)) as address:
        load(browser, address, "sort tree")
        for shown in (20, 25):
            before = texts(browser, "#hits .id, #hits h3")
            browser.find_element("css selector", "#more").click()
            until_status(browser, f"The best {shown} of 40")
            assert texts(browser, "#hits .id, #hits h3")[: len(before)] == before
            assert texts(browser, ":focus h3")[0].startswith(f"{len(before) + 1}. ")
        assert not browser.find_element("css selector", "#more").is_displayed()
        assert browser.current_url.endswith("?q=sort+tree&k=25")
    assert problems(browser) == []


def test_a_dense_model_shows_no_terms(
    browser: Any,
    tiny_dense: Any,
    serving: Callable[[Any], AbstractContextManager[str]],
    passages: dict[str, Passage],
    tmp_path: Path,
) -> None:
    """It compares whole texts: there is nothing to mark."""
    from lexforge import corpus

    tiny_dense.save_pretrained(str(tmp_path / "model"))
    corpus.index_passages(tiny_dense, passages, tmp_path / "index", name=str(tmp_path / "model"))
    with serving(create_app(tmp_path / "index")) as address:
        load(browser, address, "sort the list")
        assert len(texts(browser, ".snippet")) == 7
        assert texts(browser, ".snippet mark, #hits .chips") == []
        assert not browser.find_element("css selector", "#query").is_displayed()
    assert problems(browser) == []


CONTRASTS = """
    const light = colour => {
        const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(part => {
            const share = part / 255;
            return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    const behind = element => {
        const { backgroundColor } = getComputedStyle(element);
        const isClear = backgroundColor === "rgba(0, 0, 0, 0)";
        return isClear && element.parentElement ? behind(element.parentElement) : backgroundColor;
    };
    const hasText = element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    const elements = [...document.querySelectorAll("body *")].filter(
        element => element.checkVisibility() && hasText(element));
    return elements.map(element => {
        const both = [light(getComputedStyle(element).color), light(behind(element))];
        const contrast = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
        return [`${element.tagName} ${element.className}`, contrast];
    });
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(browser: Any, address: str, scheme: str) -> None:
    """Contrast of at least 4.5 (WCAG 2.2, AA) in both schemes of colours, which follow the system."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        load(browser, address, "search the tree")
        measured = browser.execute_script(CONTRASTS)
        assert len(measured) > 50
        assert [pair for pair in measured if pair[1] < 4.5] == []
        background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(20, 23, 26)") == (scheme == "dark")
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_nothing_is_wider_than_the_screen(browser: Any, address: str) -> None:
    """A telephone that scrolls sideways loses its reader."""
    load(browser, address, "search the tree")
    for width in (1200, 320):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_every_control_has_a_name(browser: Any, address: str) -> None:
    """For readers of the screen: the field, the buttons, the list of results and the line of the state."""
    load(browser, address, "search the tree")
    controls = browser.find_elements("css selector", "input, button, summary, #hits, [role=status]")
    named = {control.aria_role: control.accessible_name for control in controls if control.is_displayed()}
    assert named["searchbox"] == "Search the documents"
    assert named["button"]
    assert named["list"] == "Results"
    assert browser.execute_script("return document.documentElement.lang") == "en"
