"""MS MARCO's own files, and qrels in TREC's four columns."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from lexforge.data import DataError, SourceOptions, load_documents, load_retrieval_data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The layout as published: no headers, tabs, four columns of judgements."""
    root = tmp_path / "msmarco"
    root.mkdir()
    (root / "collection.tsv.gz").write_bytes(
        gzip.compress(b"".join(b"%d\tpassage %d\n" % (i, i) for i in range(6)))
    )
    (root / "queries.train.tsv").write_text("10\tfirst query\n11\tsecond query\n")
    (root / "queries.dev.small.tsv").write_text("20\tthird query\n")
    (root / "qrels.train.tsv").write_text("10\t0\t1\t1\n11\t0\t2\t1\n")
    (root / "qrels.dev.small.tsv").write_text("20 0 3 1\n")
    (root / "qidpidtriples.train.small.tsv").write_text("10\t1\t4\n10\t1\t5\n11\t2\t4\n")
    return root


def test_the_files_become_a_retrieval_set(folder: Path) -> None:
    """The test judgements are not public, so dev.small is measured as test, as BEIR does."""
    data = load_retrieval_data(str(folder), ["train", "test"])
    assert data.corpus["3"] == "passage 3"
    assert data.queries == {"10": "first query", "11": "second query", "20": "third query"}
    assert data.qrels == {"train": {"10": {"1": 1}, "11": {"2": 1}}, "test": {"20": {"3": 1}}}
    assert len(load_documents(str(folder))) == 6


def test_dev_and_test_share_no_query(folder: Path) -> None:
    """The best checkpoint would be chosen on the queries that judge it."""
    (folder / "queries.dev.tsv").write_text("21\tfourth query\n")
    (folder / "qrels.dev.tsv").write_text("20 0 3 1\n21 0 4 1\n")
    data = load_retrieval_data(str(folder), ["dev", "test"])
    assert data.qrels == {"dev": {"21": {"4": 1}}, "test": {"20": {"3": 1}}}
    (folder / "qrels.dev.tsv").write_text("20 0 3 1\n")
    assert "dev" not in load_retrieval_data(str(folder)).splits
    with pytest.raises(DataError, match=r"qrels\.dev\.tsv: all of its queries are those of the split test"):
        load_retrieval_data(str(folder), ["dev"])
    (folder / "qrels.dev.tsv").write_text("20 0 3 1\n21 0 4 1\n")
    (folder / "qrels.dev.small.tsv").unlink()
    assert set(load_retrieval_data(str(folder), ["test"]).split("test")) == {"20", "21"}
    with pytest.raises(ValueError, match="has no split 'dev'"):
        load_retrieval_data(str(folder), ["test", "dev"])


@pytest.mark.parametrize("name", ["collection.tsv", "queries.train.tsv.gz", "qrels.train.tsv.zst"])
def test_a_file_that_is_there_twice_is_refused(folder: Path, name: str) -> None:
    """One of both was read, whichever came first by its name."""
    (folder / name).touch()
    with pytest.raises(DataError, match=r"^both .*\.tsv and .*\.tsv\.(gz|zst) exist; keep one$"):
        load_retrieval_data(str(folder), ["train"])


def test_several_collections_are_refused(folder: Path) -> None:
    """The first by name was read."""
    (folder / "collection.dev.tsv").write_text("1\tanother\n")
    for load in (load_documents, load_retrieval_data):
        with pytest.raises(
            DataError, match=r"one file collection\.\*; both .*dev\.tsv and collection\.tsv\.gz"
        ):
            load(str(folder))


def test_a_folder_without_judgements_names_them(folder: Path) -> None:
    """LoTTE's folders have collection.tsv too; the error was that there is no split among none."""
    for file in folder.glob("qrels.*"):
        file.unlink()
    with pytest.raises(FileNotFoundError, match=r"msmarco holds no file qrels\.\*\.tsv"):
        load_retrieval_data(str(folder), ["train"])
    assert len(load_documents(str(folder))) == 6


def test_a_text_that_is_called_collection_is_a_document(tmp_path: Path) -> None:
    """A folder of documents is no folder of MS MARCO."""
    (tmp_path / "collection.txt").write_text("stamps\t12\ncoins\t4\n")
    (tmp_path / "collection-policy.txt").write_text("what we collect")
    (tmp_path / "notes.md").write_text("# Notes\n\nother words")
    assert len(load_documents(str(tmp_path))) == 3


def test_the_documents_of_triples_are_the_collection_beside_them(folder: Path) -> None:
    """`lexforge encode` takes the source that a training took."""
    assert len(load_documents(str(folder / "qidpidtriples.train.small.tsv"))) == 6


def test_triples_of_ids_are_judgements(folder: Path) -> None:
    """Their negatives are trained on by `--negatives judged`."""
    data = load_retrieval_data(str(folder / "qidpidtriples.train.small.tsv"))
    assert data.split("train") == {"10": {"1": 1, "4": 0, "5": 0}, "11": {"2": 1, "4": 0}}
    (folder / "qidpidtriples.train.small.tsv").write_text("10\t1\t99\n")
    with pytest.raises(DataError, match=r"tsv:1: expected the ids of a query, a positive and a negative"):
        load_retrieval_data(str(folder / "qidpidtriples.train.small.tsv"))
    (folder / "qidpidtriples.train.small.tsv").write_text("10\t1\t99\n10\t1\t4\n")
    skipping = SourceOptions(bad_rows="skip")
    data = load_retrieval_data(str(folder / "qidpidtriples.train.small.tsv"), ["train"], skipping)
    assert data.split("train") == {"10": {"1": 1, "4": 0}}
    (folder / "collection.tsv.gz").write_bytes(gzip.compress(b"1\t \n2\tpassage\n4\tother\n"))
    (folder / "qidpidtriples.train.small.tsv").write_text("10\t1\t4\n11\t2\t4\n")
    data = load_retrieval_data(str(folder / "qidpidtriples.train.small.tsv"), ["train"])
    assert set(data.split("train")) == {"11"}


def test_a_missing_split_and_a_wrong_line_are_named(folder: Path) -> None:
    """Eight million lines are long to search by hand."""
    with pytest.raises(ValueError, match="has no split 'eval'"):
        load_retrieval_data(str(folder), ["eval"])
    (folder / "queries.train.tsv").write_text("10 first query\n")
    with pytest.raises(DataError, match=r"queries\.train\.tsv:1: expected an id, a tab and a text"):
        load_retrieval_data(str(folder))


def test_an_id_of_two_queries_is_refused(folder: Path) -> None:
    """The query of the file that came last took the judgements of the other, in silence."""
    (folder / "queries.dev.small.tsv").write_text((folder / "queries.train.tsv").read_text())  # the same
    load_retrieval_data(str(folder), ["train"])
    (folder / "queries.dev.small.tsv").write_text("10\tanother query\n")
    with pytest.raises(DataError, match=r"queries\.train\.tsv: the id '10' is that of another query"):
        load_retrieval_data(str(folder), ["train"])


def test_qrels_in_four_columns_in_a_beir_folder(tmp_path: Path) -> None:
    """TREC's form is what judgements are published in."""
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d1", "text": "one"}\n{"_id": "d2", "text": "two"}\n')
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "ask"}\n')
    (tmp_path / "qrels" / "test.txt").write_text("q1 0 d1 2\nq1\tQ0\td2\t0\n")
    assert load_retrieval_data(str(tmp_path)).split("test") == {"q1": {"d1": 2, "d2": 0}}
