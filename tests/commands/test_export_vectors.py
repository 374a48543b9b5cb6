"""Vectors from an encoded corpus to the files of an engine, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lexforge.commands import export_vectors


def test_documents_and_queries_are_written_with_the_terms_of_the_model(
    vectors: Path, corpus_folder: Path, tmp_path: Path, capsys
) -> None:
    """The command as the README gives it; a query for a document's text shares its terms."""
    (corpus_folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "parse a tree"}) + "\n")
    out = tmp_path / "out"
    export_vectors.main(export_vectors.Config(vectors, "elasticsearch", out, queries=corpus_folder))
    printed = capsys.readouterr().out
    assert f"7 documents in 1 files for elasticsearch in {out}" in printed
    assert "recall@10 of what the engine keeps, against exact search: 1.0000 (1 queries)" in printed
    assert "- Experimental: these files were compared with the documentation of Elasticsearch" in printed
    assert "- sparse_vector keeps 9 significant bits" in printed
    lines = [json.loads(line) for line in (out / "documents-00000.ndjson").read_text().splitlines()]
    documents = {a["index"]["_id"]: b["vector"] for a, b in zip(lines[::2], lines[1::2], strict=True)}
    assert set(documents) == {f"d{i}" for i in range(7)}
    (line,) = (out / "queries.jsonl").read_text().splitlines()
    query = json.loads(line)["body"]["query"]["sparse_vector"]["query_vector"]
    # The model is symmetric, and the texts are equal; batches of another shape round otherwise.
    assert query == pytest.approx(documents["d2"], rel=1e-5, abs=1e-5)


def test_queries_without_a_term_are_counted(
    vectors: Path, corpus_folder: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    """A run over fewer queries than the user has must not come as a surprise."""
    lines = [json.dumps({"_id": name, "text": "parse a tree"}) + "\n" for name in "ab"]
    (corpus_folder / "queries.jsonl").write_text("".join(lines))
    encoded = export_vectors.corpus.encode

    def without_the_first(*arguments, **options):
        rows = encoded(*arguments, **options)
        rows.data[: rows.indptr[1]] = 1e-6  # rounds to 0
        return rows

    monkeypatch.setattr(export_vectors.corpus, "encode", without_the_first)
    out = tmp_path / "out"
    export_vectors.main(export_vectors.Config(vectors, "anserini", out, queries=corpus_folder))
    assert "1 queries have no term whose weight is kept, so they are left out\n" in capsys.readouterr().out
    assert (out / "queries.tsv").read_text().startswith("b\t")


def test_an_engine_that_numbers_terms_needs_no_model(
    vectors: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors outlive the machine that holds the model, and a model that is named would not be read."""
    with pytest.raises(ValueError, match="--model nowhere would be ignored: pgvector takes numbers of terms"):
        export_vectors.main(export_vectors.Config(vectors, "pgvector", tmp_path / "out", model="nowhere"))
    monkeypatch.setattr(export_vectors.models, "load_encoder", None)
    export_vectors.main(export_vectors.Config(vectors, "pgvector", tmp_path / "out"))
    assert "3 documents as queries" in capsys.readouterr().out


def test_a_folder_in_use_is_refused_before_a_model_is_loaded(vectors: Path, tmp_path: Path) -> None:
    """The model takes seconds to minutes to load."""
    with pytest.raises(FileExistsError, match="is not an empty directory"):
        export_vectors.main(export_vectors.Config(vectors, "vespa", vectors, model="nowhere"))
