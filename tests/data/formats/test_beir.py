"""BEIR folders, read and refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from lexforge.data import DataError, load_documents, load_queries, load_retrieval_data, load_teacher_scores

DOCUMENTS = [
    {"_id": "d1", "title": "Heaps", "text": "a binary heap\u2028keeps the least element first"},
    {"_id": "d2", "title": "", "text": "quick sort\u0085partitions"},
    {"_id": "d3", "title": "", "text": ""},
]
QUERIES = [{"_id": "q1", "text": "which tree keeps the least element"}, {"_id": "q2", "text": "서울 검색"}]
HEADER = "query-id\tcorpus-id\tscore\n"


def json_lines(records: list[dict]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def write_set(folder: Path, *, corpus: str | None = None, queries: str | None = None, **qrels: str) -> Path:
    """A small set; any of its files can be replaced."""
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(corpus or json_lines(DOCUMENTS), encoding="utf-8", newline="")
    (folder / "queries.jsonl").write_text(queries or json_lines(QUERIES), encoding="utf-8", newline="")
    for split, text in (qrels or {"train": HEADER + "q1\td1\t2\nq1\td2\t0\n"}).items():
        (folder / "qrels" / f"{split}.tsv").write_text(text, encoding="utf-8", newline="")
    return folder


def test_reads_texts_grades_and_splits(tmp_path: Path) -> None:
    """Title and text are joined, Unicode line separators stay inside a text, and grades stay graded."""
    folder = write_set(tmp_path / "toy", train=HEADER + "q1\td1\t2\nq1\td2\t0\n", test=HEADER + "q2\td2\t1\n")
    data = load_retrieval_data(str(folder))
    assert data.name == "toy"
    assert data.corpus == {
        "d1": "Heaps a binary heap\u2028keeps the least element first",
        "d2": "quick sort\u0085partitions",
        "d3": "",
    }
    assert data.queries == {"q1": "which tree keeps the least element", "q2": "서울 검색"}
    assert data.qrels == {"train": {"q1": {"d1": 2, "d2": 0}}, "test": {"q2": {"d2": 1}}}
    assert load_retrieval_data(str(folder), ["test"]).splits == ("test",)


def test_a_title_of_null_is_none(tmp_path: Path) -> None:
    """`datasets` writes null where a record has no title; the hub and its copy in a folder read the same."""
    corpus = '{"_id": "d1", "title": null, "text": "a"}\n{"_id": "d2", "title": "B", "text": "b"}\n'
    folder = write_set(tmp_path / "toy", corpus=corpus)
    assert load_retrieval_data(str(folder)).corpus == {"d1": "a", "d2": "B b"}


def test_gzip_windows_line_ends_and_a_missing_header_are_read(tmp_path: Path) -> None:
    """Sets are published in these forms, and each says without doubt what it means."""
    folder = write_set(tmp_path / "toy", train="q1\td1\t1\r\nq2\td2\t1\r\n")
    plain = load_retrieval_data(str(folder))
    for path in (folder / "corpus.jsonl", folder / "queries.jsonl", folder / "qrels" / "train.tsv"):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert plain.qrels == {"train": {"q1": {"d1": 1}, "q2": {"d2": 1}}}
    assert load_retrieval_data(str(folder)) == plain


@pytest.mark.parametrize(
    ("part", "content", "message"),
    [
        ("corpus", "", r"corpus\.jsonl holds no record"),
        ("corpus", '{"_id": "d1", "text": "a"}\n{"_id": "d1", "text": "b"}\n', r"corpus\.jsonl:2: .*second"),
        ("corpus", '{"_id": "d1", "text": 5}\n', r"corpus\.jsonl:1: 'text' must be a string; received 5"),
        ("corpus", '{"_id": 7, "text": "a"}\n', r"corpus\.jsonl:1: '_id' must be a string; received 7"),
        ("corpus", '{"_id": "d1", "text": "a", "title": 0}\n', r"corpus\.jsonl:1: 'title' must be"),
        ("corpus", '{"_id": "", "text": "a"}\n', r"corpus\.jsonl:1: the id is empty"),
        ("corpus", '{"_id": "d1"}\n', r"corpus\.jsonl:1: the field 'text' is missing"),
        ("corpus", '{"_id": "d1", "text": "a"\n', r"corpus\.jsonl:1: not a JSON object"),
        ("queries", '{"_id": "q1", "text": " "}\n', r"queries\.jsonl:1: 'q1' has no text"),
        ("train", "", r"train\.tsv holds no positive"),
        ("train", HEADER, r"train\.tsv holds no positive"),
        (
            "train",
            HEADER + "q1\td1\tnan\n",
            r"train\.tsv:2: the score must be an integer grade from -9999 to 9999; received 'nan'",
        ),
        ("train", HEADER + "q1\td1\t0.5\n", r"train\.tsv:2: the score must be an integer grade"),
        (
            "train",
            "q1\td1\tnan\n",
            r"train\.tsv:1: the score must be an integer grade from -9999 to 9999; received 'nan'",
        ),
        ("train", HEADER + "q1\td1\t10000\n", r"train\.tsv:2: .* from -9999 to 9999; received 10000"),
        ("train", HEADER + "q1\td1\t-9999999999\n", r"train\.tsv:2: .*; received '-9999999999'"),
        ("train", "query\tdocument\trelevance\n", r"train\.tsv:1: expected the header"),
        (
            "train",
            HEADER + "q1 d1 1\n",
            r"train\.tsv:2: expected query id, document id and score with tabs between them",
        ),
        ("train", HEADER + "q9\td1\t1\n", r"train\.tsv:2: the query id 'q9' is not among the queries"),
        ("train", HEADER + "q1\td9\t1\n", r"train\.tsv:2: the document id 'd9' is not in the corpus"),
        ("train", HEADER + "q1\td1\t1\nq1\td1\t0\n", r"train\.tsv:3: query 'q1' judges 'd1' a second time"),
        ("train", HEADER + "q1\td1\t1\nq2\td1\t0\n", r"train\.tsv:3: query 'q2' has no positive"),
    ],
)
def test_wrong_data_is_refused_with_its_place(tmp_path: Path, part: str, content: str, message: str) -> None:
    """A user must find the wrong line in a file of millions."""
    folder = write_set(tmp_path / "toy")
    name = "qrels/train.tsv" if part == "train" else f"{part}.jsonl"
    (folder / name).write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        load_retrieval_data(str(folder))


def test_an_evaluation_split_may_judge_a_query_without_a_positive(tmp_path: Path) -> None:
    """ir-measures keeps such a query in the mean; only training cannot use it."""
    folder = write_set(tmp_path / "toy", test=HEADER + "q1\td1\t1\nq2\td1\t0\n")
    assert load_retrieval_data(str(folder)).split("test") == {"q1": {"d1": 1}, "q2": {"d1": 0}}


def test_unknown_split_and_missing_parts_are_named(tmp_path: Path) -> None:
    """The message must say what there is, so that a typing error is mended at once."""
    folder = write_set(tmp_path / "toy")
    with pytest.raises(ValueError, match=r"no split 'test'; its splits are \['train'\]"):
        load_retrieval_data(str(folder), ["test"])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_retrieval_data(str(tmp_path / "nowhere"))
    (folder / "corpus.jsonl.gz").write_bytes(b"")
    with pytest.raises(DataError, match=r"both .* exist"):
        load_retrieval_data(str(folder))
    (folder / "corpus.jsonl.gz").unlink()
    (folder / "queries.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r"queries\.jsonl"):
        load_retrieval_data(str(folder))
    (folder / "qrels" / "train.tsv").unlink()
    (folder / "queries.jsonl").write_text(json_lines(QUERIES), encoding="utf-8")
    with pytest.raises(FileNotFoundError, match=r"holds no file \.tsv, "):
        load_retrieval_data(str(folder))


def test_validation_is_dev(tmp_path: Path) -> None:
    """As in every other format: a run that measures dev did not find it, or held it out of train again."""
    judged = HEADER + "q1\td1\t1\n"
    folder = write_set(tmp_path / "toy", train=judged, validation=HEADER + "q2\td2\t1\n")
    assert load_retrieval_data(str(folder), ["dev"]).qrels == {"dev": {"q2": {"d2": 1}}}
    with pytest.raises(ValueError, match=r"has no split .*: 'validation' is called 'dev' here"):
        load_retrieval_data(str(folder), ["validation"])
    (folder / "qrels" / "dev.tsv").write_text(judged)
    with pytest.raises(DataError, match=r"both .*dev\.tsv and validation\.tsv hold the split 'dev'"):
        load_retrieval_data(str(folder))


def test_teacher_scores_are_read_and_checked(tmp_path: Path) -> None:
    """A NaN score would end a run after hours instead of before its first step."""
    data = load_retrieval_data(str(write_set(tmp_path / "toy")))
    path = tmp_path / "scores.tsv"
    path.write_text(HEADER + "q1\td1\t0.75\nq1\td2\t-1e-3\n")
    assert load_teacher_scores(path, data) == {"q1": {"d1": 0.75, "d2": -0.001}}
    for text, message in {
        "q1\td1\tnan\n": r"scores\.tsv:1: the score must be a finite number; received 'nan'",
        "q1\td1\t1\nq1\td2\tx\n": r"scores\.tsv:2: the score must be a finite number; received 'x'",
        "q1\td9\t1\n": r"scores\.tsv:1: 'q1' or 'd9' is not an id of toy",
        "q1\td1\t1\nq1\td1\t2\n": r"scores\.tsv:2: .*second time",
        "": "holds no score",
    }.items():
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            load_teacher_scores(path, data)


def test_the_corpus_is_read_without_queries(tmp_path: Path) -> None:
    """A corpus to search has no judgements; what is wrong in it is refused as in a whole set."""
    whole = load_retrieval_data(str(write_set(tmp_path / "toy")))
    (tmp_path / "toy" / "queries.jsonl").unlink()
    assert load_documents(str(tmp_path / "toy")) == whole.corpus
    (tmp_path / "toy" / "corpus.jsonl").write_text(json_lines([DOCUMENTS[0], DOCUMENTS[0]]))
    with pytest.raises(DataError, match=r"corpus\.jsonl:2: the id 'd1' occurs a second time"):
        load_documents(str(tmp_path / "toy"))
    with pytest.raises(FileNotFoundError, match=r"there is no file or folder .*elsewhere; expected"):
        load_documents(str(tmp_path / "elsewhere"))


def test_the_queries_are_read_without_documents(tmp_path: Path) -> None:
    """An export of queries needs no corpus; what is wrong in them is refused as in a whole set."""
    whole = load_retrieval_data(str(write_set(tmp_path / "toy")))
    (tmp_path / "toy" / "corpus.jsonl").unlink()
    assert load_queries(tmp_path / "toy") == whole.queries
    (tmp_path / "toy" / "queries.jsonl").write_text(json_lines([{"_id": "q1", "text": " "}]))
    with pytest.raises(DataError, match=r"queries\.jsonl:1: "):
        load_queries(tmp_path / "toy")
    with pytest.raises(FileNotFoundError, match="elsewhere is not a folder"):
        load_queries(tmp_path / "elsewhere")


# Documents, queries, and (queries, pairs) judged a split, as the README beside the sets counts them.
PUBLISHED = {
    "korquad": (961, 5764, {"train": (4016, 4016), "dev": (736, 736), "test": (1012, 1012)}),
    "newwiki": (1581, 7738, {"train": (5427, 5427), "dev": (823, 823), "test": (1488, 1488)}),
    "msmarco-dl19-sub": (5000, 50, {"test": (43, 4102)}),
    "cranfield": (1400, 225, {"test": (225, 1837)}),
    "cacm": (3204, 64, {"test": (52, 796)}),
    "npl": (11426, 93, {"test": (93, 2083)}),
    "scifact": (5183, 1109, {"train": (705, 795), "dev": (104, 124), "test": (300, 339)}),
    "nfcorpus-lc": (3395, 3244, {"train": (2563, 110075), "dev": (324, 11385), "test": (323, 12334)}),
    "medquad": (11924, 11618, {"train": (9706, 10409), "dev": (893, 979), "test": (1019, 1075)}),
    "chatbot-ko": (7779, 11662, {"train": (9410, 9471), "dev": (1184, 1198), "test": (1068, 1081)}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sets_are_read_whole(shared_folder: Path, name: str) -> None:
    """Real files hold what made-up ones do not; the counts come from whoever made the files."""
    data = load_retrieval_data(str(shared_folder / "data" / name))
    counts = {
        split: (len(judgements), sum(map(len, judgements.values())))
        for split, judgements in data.qrels.items()
    }
    assert (len(data.corpus), len(data.queries), counts) == PUBLISHED[name]
