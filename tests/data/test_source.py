"""A command line's `--data` reaches the loader its form asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexforge.data import RetrievalData, TrainingData, load_beir, load_retrieval_data


def test_a_folder_is_read_as_beir(tmp_path: Path) -> None:
    """The same set as `load_beir` gives, so that a script and a notebook agree."""
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d", "title": "T", "text": "body"}\n')
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "query"}\n')
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    assert load_retrieval_data(str(tmp_path)) == load_beir(tmp_path)


def test_a_name_that_is_nothing_is_an_error(tmp_path: Path) -> None:
    """A typing error must not fall back to the embedded corpus."""
    with pytest.raises((FileNotFoundError, ValueError), match="docstring"):
        load_retrieval_data(str(tmp_path / "docstring"))


def test_the_embedded_corpus_and_the_hub_have_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `docstrings` and `hf:` are special."""
    monkeypatch.setattr("lexforge.data.source.load_docstrings", lambda: "embedded")
    monkeypatch.setattr("lexforge.data.source.load_hub", lambda name: f"hub {name}")
    assert load_retrieval_data("docstrings") == "embedded"
    assert load_retrieval_data("hf:org/name") == "hub hf:org/name"


def test_other_queries_are_neither_trained_on_nor_tested() -> None:
    """Numbers of terms are made exact on them: those of trained queries differ, and test is for measuring."""
    queries = {"a": "trained", "b": "of dev", "c": "tested", "d": "judged nowhere"}
    judged = {"train": {"a": {"x": 1}}, "dev": {"b": {"x": 1}}, "test": {"c": {"x": 1}}}
    whole = RetrievalData("set", {"x": "text"}, queries, judged)
    assert TrainingData(whole.only(["test"]), ["text"], whole).other_queries() == ["of dev", "judged nowhere"]
    assert TrainingData(whole.only(["test"]), ["text"]).other_queries() == []
