"""TREC files: round trips, agreement with ir-measures' reader, errors that name the line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from lexforge.data import DataError, RetrievalData
from lexforge.evaluation import (
    check_run_ids,
    read_run,
    read_run_of_split,
    write_run,
)
from lexforge.retrieval import Hits

RUN = {"q1": {"b": 2.5, "한글": 1.0, "a": -0.125}, "q2": {"a": 1e-7}}


@pytest.mark.parametrize("name", ["run.trec", "run.trec.gz"])
def test_a_run_comes_back(name: str, tmp_path: Path) -> None:
    """Scores must survive to the last bit, or ties come back."""
    exact = float(np.nextafter(np.float32(2.5), np.float32(0)))
    run = {**RUN, "q3": {"x": 2.5, "y": exact, "z": 1 / 3}}
    write_run(tmp_path / name, run)
    assert read_run(tmp_path / name) == run
    assert list(read_run(tmp_path / name)["q3"]) == ["x", "y", "z"]


def test_the_lines_of_a_run(tmp_path: Path) -> None:
    """The layout is fixed by trec_eval; ranks follow the score, not the dict."""
    write_run(tmp_path / "run", {"q": {"low": 1.0, "high": 2.0}})
    assert (tmp_path / "run").read_text() == "q Q0 high 1 2.0 lexforge\nq Q0 low 2 1.0 lexforge\n"


def test_ir_measures_reads_what_is_written(tmp_path: Path) -> None:
    """The command line of ir-measures must score the same run; ties were separated by `to_run`."""
    import ir_measures
    from ir_measures import RR, nDCG

    hits = Hits([["z", "a", "m"]], [np.array([1, 1, 1], np.float32)])
    for relevant, rank in (("z", 1), ("a", 2), ("m", 3)):
        write_run(tmp_path / "run", hits.to_run(["q"]))
        (tmp_path / "qrels").write_text(f"q 0 {relevant} 1\n")
        run = ir_measures.read_trec_run(str(tmp_path / "run"))
        qrels = ir_measures.read_trec_qrels(str(tmp_path / "qrels"))
        values = ir_measures.calc_aggregate([RR @ 10, nDCG @ 10], list(qrels), list(run))
        assert values[RR @ 10] == pytest.approx(1 / rank)
        assert values[nDCG @ 10] == pytest.approx(1 / np.log2(1 + rank))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"q1 Q0 a 1 2.0", "a line must have the columns `query Q0 .* score tag`; received 5 columns"),
        (b"q1 Q0 a 1 high t", "run:2: the score must be a finite number; received 'high'"),
        (b"q1 Q0 a 1 nan t", "run:2: the score must be a finite number; received 'nan'"),
        (b"q1 Q0 a 1 inf t", "run:2: the score must be a finite number; received 'inf'"),
        (b"q1 Q0 b 2 2.5 t", "run:2: document 'b' occurs twice for query 'q1'"),
        (b"q\xff Q0 a 1 2.0 t", "run:2: not UTF-8"),
        (b"q9 Q0 a 1 2.0 t", "run:2: query 'q9' is not in the data"),
        (b"q1 Q0 z 1 2.0 t", "run:2: document 'z' is not in the data"),
    ],
)
def test_a_bad_line_of_a_run(line: bytes, message: str, tmp_path: Path) -> None:
    """The reader of a long file needs the line."""
    (tmp_path / "run").write_bytes(b"q1 Q0 b 1 2.5 t\n" + line + b"\n")
    with pytest.raises(ValueError, match=message):
        read_run(tmp_path / "run", queries={"q1"}, documents={"a", "b"})


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"a b": {"d": 1.0}}, "query id 'a b'"),
        ({"q": {"": 1.0}}, "document id ''"),
        ({"q": {"d\u00a0e": 1.0}}, "document id"),
        ({"q": {"d": float("nan")}}, "the score must be finite; received nan"),
    ],
)
def test_what_a_file_cannot_carry_is_not_written(run, message: str, tmp_path: Path) -> None:
    """An id with a space shifts the columns of its line; nothing half-written is left behind."""
    with pytest.raises(ValueError, match=message):
        write_run(tmp_path / "run", run)
    assert not (tmp_path / "run").exists()


def test_ids_are_checked_as_they_are_written() -> None:
    """What passes before a training must be written after it."""
    check_run_ids(["q1", "한글"], ["d\u00ad1", "a\ufeffb"])
    for name in ("", "a b", "a\tb", "a\u00a0", "\ufeffa", "\u3000"):
        with pytest.raises(ValueError, match="query id"):
            check_run_ids(["q1", name], [])
        with pytest.raises(ValueError, match="document id"):
            check_run_ids([], ["d1", name])


@pytest.mark.parametrize("name", ["x", "x.gz"])
def test_a_byte_order_mark_is_read_over(name: str, tmp_path: Path) -> None:
    """As a part of the first query's id it would leave that query without judgement."""
    path = tmp_path / name
    content = "\ufeffq1 Q0 d1 1 2.0 t\n".encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read_run(path) == {"q1": {"d1": 2.0}}


def test_a_run_of_another_split_is_refused_or_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`--split` is easily forgotten; pairs of train were scored beside a run of test, which went unread."""
    data = RetrievalData(
        "set",
        {"d": "text"},
        {"q1": "one", "q2": "two"},
        {"train": {"q1": {"d": 1}}, "test": {"q2": {"d": 1}}},
    )
    write_run(tmp_path / "test.trec", {"q2": {"d": 1.0}})
    message = "must rank queries of the split 'train'; it ranks none: its first query is 'q2' .--split names"
    with pytest.raises(DataError, match=message):
        read_run_of_split(tmp_path / "test.trec", data, "train")
    assert read_run_of_split(tmp_path / "test.trec", data, "test") == {"q2": {"d": 1.0}}
    assert not caplog.messages
    write_run(tmp_path / "both.trec", {"q1": {"d": 2.0}, "q2": {"d": 1.0}})
    assert read_run_of_split(tmp_path / "both.trec", data, "train") == {"q1": {"d": 2.0}}
    (told,) = caplog.messages
    assert "both.trec: 1 of 2 queries left out, because the split 'train' lacks them, such as 'q2'" in told
