"""Whether a run beat BM25 and its start is said once, for the page and for the terminal."""

from __future__ import annotations

import html
import json
import re
from datetime import datetime
from pathlib import Path

import pytest
from warm_processes import WarmProcesses

from lexforge.report import run_verdict, write_page
from lexforge.report.run_files import RunFiles
from lexforge.report.verdict import interval


def test_the_terminal_says_what_the_page_begins_with(run: Path) -> None:
    """A user who never opens the page must not miss that the run lost to BM25."""
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["bm25"]["nDCG@10"] = 0.75
    (run / "metrics.json").write_text(json.dumps(metrics))
    said = run_verdict(run)
    assert said.startswith("Training raised nDCG@10 from 0.350 to 0.617 (p < 0.001).")
    assert "That is 0.133 below BM25, which reaches 0.750" in said
    [lead] = re.findall(r'<p class="lead">(.*?)</p>', write_page(run).read_text(encoding="utf-8"))
    assert html.unescape(lead) == said


def test_an_adaptation_that_has_ended_is_no_interrupted_run(run: Path) -> None:
    """It leaves adapt.json in place of metrics.json, and a resumed one would rebuild its index."""
    for file in (run / "metrics.json", *run.glob("*.scores.json")):
        file.unlink()
    assert "it can be resumed" in run_verdict(run)
    (run / "adapt.json").write_text("{}")
    assert run_verdict(run) == "The adaptation has ended; adapt.json holds what it measured."
    assert "--resume" not in html.unescape(write_page(run).read_text(encoding="utf-8"))


def test_a_resumed_run_is_as_new_as_its_last_beginning(run: Path) -> None:
    """The time was that of the last line before the interruption, beside the advice to resume."""
    for file in (run / "metrics.json", *run.glob("*.scores.json")):
        file.unlink()
    *_, last = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    begin = {
        "begin": True,
        "step": last["step"],
        "max_steps": 99,
        "epoch": 1.0,
        "time": last["time"] + 864_000,
    }
    with (run / "log.jsonl").open("a") as log:
        log.write(json.dumps(begin) + "\n")
    assert datetime.fromtimestamp(begin["time"]).strftime("%Y-%m-%d") in run_verdict(run)
    assert ", resumed once</dd>" in write_page(run).read_text(encoding="utf-8")


def test_a_measure_that_is_no_number_is_not_compared(run: Path) -> None:
    """The page said that the model is nan from BM25."""
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["trained"]["nDCG@10"] = float("nan")
    (run / "metrics.json").write_text(json.dumps(metrics))
    said = run_verdict(run)
    assert "Training moved nDCG@10 from 0.350 to nan" in said
    assert "BM25" not in said


def test_a_change_below_the_printed_digits_is_none(run: Path) -> None:
    """`raised from 0.917 to 0.917` is no sentence that helps anybody."""
    metrics = json.loads((run / "metrics.json").read_text())
    for before, trained in ((0.91702, 0.91742), (0.91742, 0.91702), (0.917, 0.917)):
        metrics["initial"]["nDCG@10"], metrics["trained"]["nDCG@10"] = before, trained
        (run / "metrics.json").write_text(json.dumps(metrics))
        assert run_verdict(run).startswith("Training did not change nDCG@10: it is 0.917. ")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.9, 1.0, 1.0], (0.82324491, 1.0)),  # that of scipy's `ttest_1samp` ends at 1.11
        ([0.5, 0.5], (0.5, 0.5)),
        ([0.25], (0.0, 1.0)),  # one query tells nothing
    ],
)
def test_the_interval_of_a_mean_stays_in_the_range_of_a_measure(
    run: Path, values: list[float], expected: tuple[float, float]
) -> None:
    """No mean over queries can be above 1, or below 0."""
    per_query = {"nDCG@10": {str(query): value for query, value in enumerate(values)}}
    (run / "trained.scores.json").write_text(json.dumps(per_query))
    assert interval(RunFiles(run), "trained", "nDCG@10") == pytest.approx(expected)


def test_a_wanted_number_of_terms_is_named_where_bm25_is_ahead(run: Path) -> None:
    """The preset may have chosen it, and a user who reads only the verdict would look elsewhere."""
    metrics = json.loads((run / "metrics.json").read_text())
    told = "128 per document were wanted; where queries ask for details, a search may need more"
    for wanted, bm25, expected in ((128, 0.75, True), (128, 0.25, False), (None, 0.75, False)):
        metrics["bm25"]["nDCG@10"] = bm25
        metrics["wanted_terms"] = {"document": wanted, "query": None}
        (run / "metrics.json").write_text(json.dumps(metrics))
        assert (told in run_verdict(run)) == expected


def test_the_verdict_needs_no_charts(run: Path, warm: WarmProcesses) -> None:
    """The numbers of a run must be told even where its page cannot be drawn."""
    code = (
        "import sys; sys.modules['bokeh'] = None; from lexforge.report import run_verdict; "
        f"print(run_verdict({str(run)!r}))"
    )
    done = warm.completed("-c", code, forget=["bokeh", "lexforge"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == run_verdict(run)


def test_the_time_of_a_resumed_run_is_not_told_as_that_of_the_whole(run: Path) -> None:
    """Nobody knows the seconds of a process that was killed."""
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["timing"] = {"stage_seconds": {"read the data": 2.5, "train": 80.0}, "resumed": True}
    (run / "metrics.json").write_text(json.dumps(metrics))
    told = "Since it was resumed, the run took 1 min 22 s, of which training took 1 min 20 s."
    assert told in run_verdict(run)
    page = write_page(run).read_text(encoding="utf-8")
    assert "Time of each stage, since the run was resumed" in page
    assert "<h3>Speed" not in page
