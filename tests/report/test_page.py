"""The page says what the files of a run say, for a run that has ended, goes on, crashed, or is compared."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import asdict, replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tyro

from lexforge.commands import evaluate, index
from lexforge.report import write_page
from lexforge.report.charts import COLOURS, value_range
from lexforge.report.training_charts import loss_note
from lexforge.settings import SourceOptions

NewRun = Callable[..., Path]
VOID = {"meta", "link", "input", "br", "hr", "img"}


class Reader(HTMLParser):
    """The elements of a page with their attributes, its text, and whether every element is closed."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.source = page.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def page(new_run: NewRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run as it is."""
    run = new_run(tmp_path_factory.mktemp("page") / "first")
    written = write_page(run)
    assert written == run / "report.html"
    return written


def test_the_page_answers_the_questions_in_order(page: Path) -> None:
    """The numbers are those of the files; the first section is the verdict."""
    reader = Reader(page)
    assert reader.open == []
    headings = re.findall(r"<h2[^>]*>([^<]*)<", reader.source)
    assert headings == [
        "Did it work?",
        "Explorer",
        "The way there",
        "Queries won and lost",
        "Sparsity",
        "Diagnosis",
        "Time and speed",
        "Settings and commands",
    ]
    text = reader.text
    # 12 queries: the first falls from .1 to 0, the others rise by .3 from a mean of .35.
    assert "Training raised nDCG@10 from 0.350 to 0.617" in text
    assert "That is 0.217 above BM25, which reaches 0.400" in text
    assert "A document has 80.0 active terms and a query 20.0." in text
    assert "The run took 1 min 22 s, of which training took 1 min 20 s." in text
    assert "Better after training than before: 11 of 12 queries. Worse: 1. The same: 0." in text
    assert "123.5 kB" in text  # the index
    assert "python recipe.py --data 'a b'" in text
    assert "The shades are the phases of the curriculum: 1 to step 19, 2 to step 40." in text
    assert "not left everything" not in text


def test_the_page_asks_no_network_for_anything(page: Path) -> None:
    """It is to open from a disk, in ten years, on a machine without a network."""
    reader = Reader(page)
    for tag, attributes in reader.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, name, value)
    assert "default-src 'none'" in reader.source
    assert len(reader.source.encode()) < 5_000_000


def test_texts_of_the_data_stay_texts(page: Path) -> None:
    """Documents and queries come from the web; a page that ran them would be a hole."""
    source = Reader(page).source
    assert "<b>q0" not in source
    assert "alert(1)</script>" not in source
    assert "what is &lt;b&gt;q0&lt;/b&gt; &amp; why" in source
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', source, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["runs"][0]["texts"]["d2"].endswith("<script>alert(1)</script>")


def test_names_of_a_foreign_run_stay_texts(hostile_run: Path) -> None:
    """A run directory may come from somebody else; its names and texts must not run as script in the page."""
    source = Reader(write_page(hostile_run)).source
    assert "<img src=x" not in source
    assert "\0" not in source
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', source, re.DOTALL)
    assert data is not None
    pieces = [json.loads(data[1])["charts"]]
    while pieces:  # Bokeh reads a tooltip that is one text, or the value of a row, as HTML
        piece = pieces.pop()
        if isinstance(piece, dict):
            tooltips = piece.get("tooltips", [])
            htmls = [tooltips] if isinstance(tooltips, str) else [value for _, value in tooltips]
            assert not any("<" in html for html in htmls)
            pieces += piece.values()
        elif isinstance(piece, list):
            pieces += piece


def test_the_page_allows_no_script_but_its_own(page: Path, tmp_path: Path) -> None:
    """Script that got into the page in spite of all would still not run, and a form would lead nowhere."""
    reader = Reader(page)
    [policy] = [str(meta["content"]) for _, meta in reader.elements if "http-equiv" in meta]
    assert "unsafe" not in policy
    [nonce] = set(re.findall(r"'nonce-([\w-]{20,})'", policy))
    for tag, attributes in reader.elements:
        if tag == "style" or (tag == "script" and attributes.get("type") != "application/json"):
            assert attributes["nonce"] == nonce
        assert "style" not in attributes
    again = write_page(page.parent, output=tmp_path / "page.html")
    assert nonce not in again.read_text(encoding="utf-8")  # nobody can know it before
    for directive in ("base-uri", "form-action"):
        assert f"{directive} 'none'" in policy


def test_every_part_can_be_named_by_a_screen_reader(page: Path) -> None:
    """Landmarks, labels that exist, headings without gaps, heads of tables with a scope, real buttons."""
    reader = Reader(page)
    ids = {attributes["id"] for _, attributes in reader.elements if "id" in attributes}
    tags = [tag for tag, _ in reader.elements]
    assert {"main", "nav", "header", "footer"} <= set(tags)
    assert tags.count("h1") == 1
    levels = [int(tag[1]) for tag in tags if re.fullmatch(r"h\d", tag)]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for tag, attributes in reader.elements:
        if "aria-labelledby" in attributes:
            assert attributes["aria-labelledby"] in ids
        if tag == "th":
            assert attributes["scope"] in ("row", "col")
        if tag == "div" and attributes.get("role") == "img":
            assert len(attributes["aria-label"] or "") > 20
        assert "onclick" not in attributes
    assert "label" in tags


def test_a_run_that_goes_on_shows_what_is_there_and_names_what_is_not(run: Path) -> None:
    """A page that waits for the end is of no use to the person who waits too."""
    for name in ("metrics.json", "terms.json", "explorer.json", "trained.scores.json"):
        (run / name).unlink()
    log = (run / "log.jsonl").read_text().splitlines(keepends=True)
    (run / "log.jsonl").write_text("".join(log[:8]) + log[8][:20])  # it writes a line at this moment
    text = Reader(write_page(run)).text
    assert "The run has not ended: the last line of its log is of step 7 of 40" in text
    for name in ("metrics.json", "terms.json", "explorer.json"):
        assert f"{name} :" in text
    assert "env.json :" not in text
    assert "BM25 0.400 [0.400, 0.400]" in text  # measured before training
    assert "python recipe.py --data 'a b' --resume" in text
    assert "The way there" in text
    assert "Explorer" not in text


def test_a_run_that_crashed_at_once_has_a_page(tmp_path: Path) -> None:
    """With the settings alone there is something to look at: the settings."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text('{"data": "somewhere"}')
    text = Reader(write_page(folder, output=tmp_path / "page.html")).text
    assert "The run has not begun to train." in text
    assert "somewhere" in text
    assert not (folder / "report.html").exists()


def test_what_is_no_run_is_refused(run: Path, tmp_path: Path) -> None:
    """A wrong folder and a damaged file are named; an empty page would say that nothing happened."""
    with pytest.raises(FileNotFoundError, match="is no run directory"):
        write_page(tmp_path / "model")
    (run / "metrics.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"metrics\.json must hold a JSON object; received list"):
        write_page(run)
    (run / "metrics.json").write_text("{")
    with pytest.raises(ValueError, match=r"metrics\.json is damaged"):
        write_page(run)


def test_two_runs_stand_side_by_side(run: Path, new_run: NewRun, tmp_path: Path) -> None:
    """The question is which one is better, whether that is chance, and what was set differently."""
    other = new_run(tmp_path / "second", lift=0.2)
    page = write_page(run, other)
    assert page == run / "report-with-second.html"
    text = Reader(page).text
    assert "first reaches nDCG@10 0.617, which is 0.092 above second with 0.525 (p < 0.001)." in text
    assert "second against first" in text
    assert "Better in second than in first: 0 of 12 queries. Worse: 11. The same: 1." in text
    assert "loss.lift differs 0.3 0.2" in text
    assert "Parts of the loss of first" in text
    assert "Parts of the loss of second" in text


def test_each_line_of_two_runs_names_its_run(run: Path, new_run: NewRun, tmp_path: Path) -> None:
    """A colour is that of one run, or of one part, in all charts; a line of one run alone is named too."""
    dev = {"step": 40, "epoch": 1.0, "time": 1_700_000_000, "eval_dev_nDCG@10": 0.97}
    with (run / "log.jsonl").open("a") as file:
        file.write(json.dumps(dev) + "\n")
    other = new_run(tmp_path / "second")
    (other / "log.jsonl").write_text((other / "log.jsonl").read_text().replace("infonce", "margin"))
    page = write_page(run, other)
    named: dict[str, list[str | None]] = {}
    for _, attributes in Reader(page).elements:
        if chart := attributes.get("data-chart"):
            named.setdefault(chart, []).append(attributes["data-series"])
    assert named["terms-document"] == ["first", "first wanted", "second", "second wanted"]
    assert named["terms-query"] == ["first", "second"]
    assert named["dev"] == ["first"]
    charts = charts_of(page)
    colours = next(
        dict(renderer["attributes"]["data_source"]["attributes"]["data"]["entries"])["colour"]
        for renderer in charts["headline"]["renderers"]
        if renderer["attributes"]["glyph"]["name"] == "Scatter"
    )
    assert colours == [COLOURS[0]] * 3 + [COLOURS[1]] * 3
    flops = [
        renderer["attributes"]["glyph"]["attributes"]["line_color"]
        for chart in ("parts-0", "parts-1")
        for renderer in charts[chart]["renderers"]
        if renderer["attributes"].get("name") == "flops document"
        and renderer["attributes"]["glyph"]["name"] == "Line"
    ]
    assert flops == [COLOURS[1], COLOURS[1]]


def test_bars_of_another_width_are_comparable(run: Path, new_run: NewRun, tmp_path: Path) -> None:
    """Two equal distributions look equal, though one run has put them into bars of twice the width."""
    other = new_run(tmp_path / "second")
    for folder, histogram in (
        (run, {"edges": [0, 5, 10], "counts": [10, 20]}),
        (other, {"edges": [0, 10], "counts": [30]}),
    ):
        terms = json.loads((folder / "terms.json").read_text())
        terms["documents"]["histogram"] = histogram
        (folder / "terms.json").write_text(json.dumps(terms))
    page = write_page(run, other)
    bars = [
        dict(renderer["attributes"]["data_source"]["attributes"]["data"]["entries"])["top"]
        for renderer in charts_of(page)["histogram-documents"]["renderers"]
    ]
    assert bars == [[2, 4], [3]]
    assert "divided by its width" in Reader(page).text
    assert "divided by its width" not in Reader(write_page(run)).text


def test_two_runs_on_other_documents_are_not_compared(run: Path, new_run: NewRun, tmp_path: Path) -> None:
    """A run over a sample of the documents finds more, and one with other judgements has other values."""
    other = new_run(tmp_path / "second", lift=0.2)
    for number, each in enumerate((run, other)):
        environment = json.loads((each / "env.json").read_text())
        environment["data"] = {"judged queries": {"count": 12, "digest": f"{number}"}}
        (each / "env.json").write_text(json.dumps(environment))
    text = Reader(write_page(run, other)).text
    assert "The two runs are not compared, because they differ in their judged queries." in text
    assert "second against first" not in text


def test_two_runs_without_a_common_measure_are_not_compared(
    run: Path, new_run: NewRun, tmp_path: Path
) -> None:
    """The page says what is missing, and not that the queries differ."""
    other = new_run(tmp_path / "second")
    (other / "trained.scores.json").write_text('{"Spearman": {"a": 0.5, "b": 0.7}}')
    text = Reader(write_page(run, other)).text
    assert "not compared, because second has no nDCG@10." in text
    assert "different queries" not in text


def test_two_runs_on_other_queries_are_not_compared_by_query(
    run: Path, new_run: NewRun, tmp_path: Path
) -> None:
    """A paired test over different queries would be a number without a meaning."""
    other = new_run(tmp_path / "second")
    (other / "trained.scores.json").write_text('{"nDCG@10": {"other": 0.5, "another": 0.7}}')
    assert "measured on different queries" in Reader(write_page(run, other)).text


def test_a_run_without_a_corpus_shows_its_own_measure(new_run: NewRun, tmp_path: Path) -> None:
    """CoSENT and NWS have correlations or F1, a loss without parts, and neither queries nor terms."""
    folder = new_run(tmp_path / "run")
    for name in ("terms.json", "explorer.json", *(f"{system}.scores.json" for system in ("bm25", "initial"))):
        (folder / name).unlink()
    (folder / "trained.scores.json").unlink()
    metrics = {
        "initial": {"pearson_cosine": 0.3, "spearman_cosine": 0.4},
        "trained": {"spearman_cosine": 0.7},
    }
    (folder / "metrics.json").write_text(json.dumps(metrics))
    line = {"step": 1, "epoch": 0.1, "time": 1_700_000_000, "loss": 2.0, "learning_rate": 1e-4}
    (folder / "log.jsonl").write_text(json.dumps(line) + "\n")
    text = Reader(write_page(folder)).text
    assert "Training raised spearman_cosine from 0.400 to 0.700." in text
    assert "not left everything" not in text
    assert "Parts of the loss" not in text
    assert "Queries won" not in text


def charts_of(page: Path) -> dict[str, dict[str, Any]]:
    """Id of a chart -> its figure, as Bokeh reads it."""
    data = re.search(r'id="data">(.*?)</script>', Reader(page).source, re.DOTALL)
    assert data is not None
    charts: dict[str, Any] = json.loads(data[1])["charts"]
    return {id: item["doc"]["roots"][0]["attributes"] for id, item in charts.items()}


def axis(chart: dict[str, Any], name: str) -> tuple[float, float]:
    """Where an axis begins and ends; Bokeh writes no value that is its default."""
    attributes = chart[f"{name}_range"]["attributes"]
    return attributes.get("start", 0), attributes.get("end", 1)


def test_axes_begin_where_a_reader_expects_it(page: Path) -> None:
    """A measure that begins at .6 makes of a small difference a large one, and steps begin at 0."""
    charts = charts_of(page)
    assert axis(charts["headline"], "x")[0] == 0
    for name in ("loss", "parts", "terms-document", "terms-query", "rate", "grad_norm", "histogram-queries"):
        assert axis(charts[name], "y")[0] == 0, name
    for name in ("loss", "shares", "rate"):
        start, end = axis(charts[name], "x")
        assert start == 0
        assert end == pytest.approx(40, rel=0.03)
        [steps] = charts[name]["below"]
        assert steps["attributes"]["ticker"]["attributes"]["min_interval"] == 1  # there is no step 1.5
    assert axis(charts["histogram-documents"], "x")[0] == 0


@pytest.mark.parametrize(
    ("values", "from_zero", "expected"),
    [
        ([0.2, 0.8], False, (0, 0.848)),
        ([6.13, 6.42], False, (6.1, 6.4392)),  # a small change of large values
        ([6.13, 6.42], True, (0, 6.8052)),
        ([5.0], False, (0, 5.3)),
        ([0.0, 0.0], False, (0, 1)),
        ([-0.25, 0.75], False, (-1, 0.855)),
        ([-2.0, -1.5], False, (-2, 0.12)),
        ([float("inf"), 0.5], False, (0, 0.53)),
    ],
)
def test_the_range_of_an_axis(values: list[float], from_zero: bool, expected: tuple[float, float]) -> None:
    """Worked out by hand: 0 where it can be, and else a round number below the lowest value."""
    found = value_range(values, from_zero=from_zero)
    assert (found.start, found.end) == pytest.approx(expected)


def test_a_part_below_a_thousandth_of_the_loss_is_seen(run: Path) -> None:
    """On a plain axis it lies on the line of 0, and in bands it has no height; a share of 0 is a gap."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    for line in lines[1:]:
        line |= {"share/infonce": 0.9998, "share/flops_document": 0.0 if line["step"] == 3 else 0.0002}
    (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = write_page(run)
    shares = charts_of(page)["shares"]
    assert shares["y_scale"]["name"] == "LogScale"
    start, end = axis(shares, "y")
    assert 0 < start < 0.02  # percent
    assert end > 99.98
    [drawn] = [
        renderer["attributes"]["data_source"]["attributes"]["data"]
        for renderer in shares["renderers"]
        if renderer["attributes"].get("name") == "flops document"
        and renderer["attributes"]["glyph"]["name"] == "Line"
    ]
    values = next(value for key, value in drawn["entries"] if key == "y")
    assert values[0] == 0.02
    assert values[2] == {"type": "number", "value": "nan"}


def test_shares_of_one_size_have_labels_at_both_ends(run: Path) -> None:
    """Bokeh labels a logarithmic axis of less than two powers of ten at its upper end alone: 50 and 100."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    for line in lines[1:]:
        line |= {"share/infonce": 0.9, "share/flops_document": 0.1}
    (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    start, end = axis(charts_of(write_page(run))["shares"], "y")
    assert end >= 100 * start


def test_a_dense_run_shows_its_curves(new_run: NewRun, tmp_path: Path) -> None:
    """Its log has neither parts nor terms, but loss, rate, gradient, what was left out and dev."""
    folder = new_run(tmp_path / "run")
    (folder / "terms.json").unlink()
    line = {"epoch": 0.1, "time": 1_700_000_000, "loss": 2.0, "learning_rate": 1e-4, "grad_norm": 7.0}
    lines: list[dict[str, Any]] = [
        line | {"step": step, "candidates/left_out": 0.01 * step} for step in (1, 2, 3)
    ]
    dev = {"step": 3, "epoch": 0.1, "time": 1_700_000_000, "eval_dev_nDCG@10": 0.97}
    (folder / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (*lines, dev)))
    page = write_page(folder)
    charts = charts_of(page)
    assert {"loss", "rate", "grad_norm", "candidates-left_out", "dev"} <= charts.keys()
    assert not {"parts", "shares", "terms-document", "histogram-documents"} & charts.keys()
    assert axis(charts["dev"], "y")[0] == 0
    text = Reader(page).text
    assert "Norm of the gradient" in text
    assert "nDCG@10 on dev" in text
    # The best checkpoint is chosen by another measure than the one that the page begins with.
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"evaluation": {"best_measure": "R@100"}}))
    (folder / "log.jsonl").write_text(
        "".join(json.dumps(one | {"eval_dev_R@100": 0.99}) + "\n" for one in (*lines, dev))
    )
    assert "R@100 on dev" in Reader(write_page(folder)).text
    for one in lines:
        one["candidates/left_out"] = 0.0
    (folder / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert "candidates-left_out" not in charts_of(write_page(folder))


def test_a_run_that_stopped_early_says_after_how_many_steps(run: Path) -> None:
    """The page named the steps that were planned, and nothing told that they were not taken."""
    assert "Steps 40 " in Reader(write_page(run)).text
    lines = (run / "log.jsonl").read_text().splitlines(keepends=True)
    (run / "log.jsonl").write_text("".join(lines[:21]))
    assert "Steps 20 of 40 " in Reader(write_page(run)).text


@pytest.mark.usefixtures("short")
def test_strong_punctuation_and_stop_words_are_explained(run: Path) -> None:
    """A reader who sees "." and "the" on top wonders whether the model is broken."""
    terms = json.loads((run / "terms.json").read_text())
    terms["documents"]["strong"] = [["##.", 0.9, False], ["the", 0.8, True], ["heart", 0.7, False]]
    terms["queries"]["strong"] = [["heart", 0.7, False], ["##2", 0.6, False]]
    (run / "terms.json").write_text(json.dumps(terms))
    text = Reader(write_page(run)).text
    assert "##. punctuation" in text
    assert "2 of these 3 are punctuation or stop words." in text
    assert text.count("Most texts have such terms") == 1  # nothing is said of the queries


@pytest.mark.usefixtures("short")
def test_strong_stop_words_come_with_the_advice_of_the_diagnosis(run: Path) -> None:
    """The penalty does nothing without idf, and a wanted number of terms replaces the weight of FLOPS."""
    terms = json.loads((run / "terms.json").read_text())
    terms["documents"]["strong"] = [["the", 0.8, True]]
    (run / "terms.json").write_text(json.dumps(terms))
    config = json.loads((run / "config.json").read_text())
    loss = {"flops_weight": 0.002, "stopword_penalty": 1.0, "idf_alpha": None}
    (run / "config.json").write_text(json.dumps(config | {"loss": loss, "document_terms": 128}))
    text = Reader(write_page(run)).text
    assert "raise --loss.stopword-penalty (now 1) and --loss.flops-weight (now 0.002)." in text
    assert "Without --loss.idf-alpha there is no penalty" in text
    metrics = json.loads((run / "metrics.json").read_text())
    wanted = {"wanted_terms": {"document": 128, "query": None}}
    (run / "metrics.json").write_text(json.dumps(metrics | wanted))
    text = Reader(write_page(run)).text
    assert "raise --loss.stopword-penalty (now 1) and lower --document-terms (now 128)." in text


def commands_of(run: Path) -> dict[str, str]:
    """The commands that the page of a run shows, by their second word."""
    lines = [line for word in Reader(write_page(run)).words for line in word.splitlines()]
    return {line.split()[1]: line for line in lines if re.match(r"lexforge \w", line)}


def test_the_commands_read_the_data_as_the_run_did(run: Path) -> None:
    """Without the names of its columns and the share held out they would end in an error."""
    options = SourceOptions(
        query_column="my query", hold_out=0.1, bad_rows="skip", delimiter=";", weight_column="clicks"
    )
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"source": asdict(options)}))
    commands = commands_of(run)
    for name, settings in {"index": index.Config, "evaluate": evaluate.Config}.items():
        read = tyro.cli(settings, args=shlex.split(commands[name])[2:])
        assert read.source == replace(options, weight_column=None)  # training alone reads weights


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("head", ["TokenWeights", "SpladePooling"])
def test_a_model_that_cannot_be_exported_has_no_command_for_it(run: Path, head: str) -> None:
    """`lexforge export model` refuses the head of BGE-M3, which any preset can train."""
    (run / "model" / "modules.json").write_text(json.dumps([{"type": f"a.module.{head}"}]))
    assert ("export" in commands_of(run)) is (head == "SpladePooling")


def test_a_run_that_searched_a_sample_says_so(run: Path) -> None:
    """Every system finds more in a sample, and the page gave a command that searches all documents."""
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"eval_documents": 3000}))
    text = Reader(write_page(run)).text
    assert "Searched the judged documents and a sample, 3,000 in all" in text
    assert "Measure the model over all documents, which finds less" in text


@pytest.mark.usefixtures("short")
def test_a_run_without_numbers_hides_those_of_no_other(run: Path, new_run: NewRun, tmp_path: Path) -> None:
    """The measure of the page was that of the first run alone."""
    other = new_run(tmp_path / "second")
    (run / "metrics.json").unlink()
    assert "All measures" in Reader(write_page(run, other)).text


@pytest.mark.usefixtures("short")
def test_stop_words_among_the_strongest_terms_are_those_of_the_diagnosis(run: Path) -> None:
    """Two measurements of one thing gave a reader two numbers; a run without a diagnosis has no row."""
    row = "stop words among the ten strongest terms of a text, in the sample of the diagnosis"
    assert f"{row} 5.0 % 10.0 %" in Reader(write_page(run)).text
    (run / "diagnosis.json").unlink()
    assert row not in Reader(write_page(run)).text


@pytest.mark.usefixtures("short")
def test_a_loss_that_grows_with_its_queue_says_so(run: Path) -> None:
    """A loss that rises looks like training that fails, until the queue is full."""
    said = "The loss may rise until the queue of 2,048 texts is full"
    for name in ("nws", "moco"):
        assert said in loss_note({"loss": {"name": name, "queue_size": 2048}})
    assert loss_note({"loss": {"name": "nws", "queue_size": 0}}) == ""
    assert loss_note({"loss": {"name": "bce", "queue_size": 2048}}) == ""
    config = json.loads((run / "config.json").read_text())
    loss = {"name": "moco", "queue_size": 2048}
    assert said not in Reader(write_page(run)).text
    (run / "config.json").write_text(json.dumps(config | {"loss": loss}))
    assert said in Reader(write_page(run)).text


def test_a_long_log_makes_no_heavy_page(run: Path) -> None:
    """400,000 steps leave 8,000 lines; the charts hold a few hundred points of them."""
    line = json.loads((run / "log.jsonl").read_text().splitlines()[1])
    with (run / "log.jsonl").open("w") as log:
        for step in range(50, 400_001, 50):
            log.write(json.dumps(line | {"step": step, "loss": 1 / step}) + "\n")
    assert write_page(run).stat().st_size < 2_500_000


def test_equal_ids_of_two_collections_are_two_queries(run: Path, new_run: NewRun, tmp_path: Path) -> None:
    """Most collections number their queries, and a page that mixes them shows hits of another question."""
    other = new_run(tmp_path / "second", lift=0.2)
    searches = json.loads((other / "explorer.json").read_text())
    for query in searches["queries"]:
        query["text"] = f"where to buy {query['id']}"
    (other / "explorer.json").write_text(json.dumps(searches))
    for number, each in enumerate((run, other)):
        environment = json.loads((each / "env.json").read_text())
        environment["data"] = {"judged queries": {"count": 12, "digest": f"{number}"}}
        (each / "env.json").write_text(json.dumps(environment))
    page = Reader(write_page(run, other))
    listed = page.text.partition("Find a query")[2].partition("Queries won and lost")[0]
    assert listed.count("what is <b>q3</b> & why") == listed.count("where to buy q3") == 1
    first, second = (page.text.partition(f"{name} against BM25")[2][:1500] for name in ("first", "second"))
    assert "what is" in first.partition(" against ")[0]
    assert "where to buy" not in first.partition(" against ")[0]
    assert "where to buy" in second.partition(" against ")[0]
    assert "what is" not in second.partition(" against ")[0]


def test_two_runs_of_one_name_are_told_apart(run: Path, new_run: NewRun, tmp_path: Path) -> None:
    """`exp1/runs/splade` beside `exp2/runs/splade`; a run beside itself compares nothing."""
    one, other = (new_run(tmp_path / name / "runs" / "splade") for name in ("exp1", "exp2"))
    text = Reader(write_page(one, other)).text
    assert "exp1/runs/splade" in text
    assert "exp2/runs/splade, BM25" in text
    with pytest.raises(ValueError, match=r"first and .*first are the same folder"):
        write_page(run, tmp_path / "x" / ".." / "first")


def test_runs_without_values_of_queries_stand_side_by_side(
    run: Path, new_run: NewRun, tmp_path: Path
) -> None:
    """Runs of STS and of several labels keep none, alone or beside a run of retrieval."""
    one, two = (new_run(tmp_path / name) for name in ("nws", "sts"))
    for folder in (one, two):
        for file in folder.glob("*.scores.json"):
            file.unlink()
        (folder / "metrics.json").write_text(json.dumps({"trained": {"label_map": 0.5}}))
    said = "The two runs are not compared, because both would have to keep their values of each query."
    for pair in ((one, two), (one, run), (run, one)):
        assert said in Reader(write_page(*pair)).text
    (two / "metrics.json").unlink()
    assert "The two runs cannot be compared before both have ended." in Reader(write_page(one, two)).text
