"""Exports in real engines: what they find must be what exact search finds over the numbers that they keep."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from lexforge.export import VECTOR_TARGETS, Queries, export_vectors

pytestmark = [
    pytest.mark.engines,
    # platformdirs, when PostgreSQL's package is imported where no desktop session gives such a folder
    pytest.mark.filterwarnings("ignore:XDG_RUNTIME_DIR is not set"),
]

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "bench" / "engine_runners.py"
WIDTH, DOCUMENTS, QUERIES, K = 500, 400, 30, 10
# Awkward names, in the positions that queries use most.
TERMS = ["a.b", "##s", "서울", 'quo"te', "back\\slash", "white space", *(f"t{i}" for i in range(6, WIDTH))]
IDS = [f"doc-{i}" for i in range(DOCUMENTS)]


def load_runners():
    spec = importlib.util.spec_from_file_location("engine_runners", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["engine_runners"] = module
    spec.loader.exec_module(module)
    return module


ENGINES = load_runners().ENGINES


def random_rows(rows: int, terms: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    dense = np.zeros((rows, WIDTH), np.float32)
    for row in dense:
        places = np.unique(np.concatenate([rng.integers(0, 6, 2), rng.integers(0, WIDTH, terms)]))
        row[places] = rng.uniform(0.1, 3, len(places))
    return dense


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_an_engine_finds_what_exact_search_finds(
    engine, store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The format, the names of terms, the scale and the order of columns are all in the answer."""
    if reason := engine.missing():
        pytest.skip(reason)
    documents, queries = random_rows(DOCUMENTS, 40, seed=0), random_rows(QUERIES, 8, seed=1)
    documents[5] = 0  # no engine may fail at a document without a term, or find it
    corpus = store(tmp_path / "corpus", sparse.csr_array(documents), IDS, block_rows=100)
    asked = Queries(sparse.csr_array(queries), [f"query-{i}" for i in range(QUERIES)])
    out, work = tmp_path / "out", tmp_path / "work"
    monkeypatch.setattr(VECTOR_TARGETS[engine.target], "shard_bytes", 60_000)
    exported = export_vectors(corpus, out, engine.target, terms=TERMS, queries=asked)
    assert len(exported.files) > 1 or engine.target == "ciff"
    work.mkdir()
    searcher = engine(out, work)
    try:
        searcher.build()
        found, seconds = searcher.search(K)
        assert searcher.nbytes() > 10_000
    finally:
        searcher.close()
    assert seconds > 0
    assert list(found) == asked.ids
    scale = exported.survey.scale
    kept = [np.rint(part * scale) if scale > 1 else part.astype(np.float64) for part in (queries, documents)]
    scores = kept[0].astype(np.float64) @ kept[1].astype(np.float64).T
    for row, name in enumerate(asked.ids):
        best = np.sort(scores[row])[::-1][:K]
        places = [IDS.index(document) for document in found[name]]
        assert len(set(places)) == len(places) == K
        # Equal scores may come in any order, and float32 sums differ in the last bits: compare the scores.
        np.testing.assert_allclose(scores[row][places], best, rtol=1e-5)


def test_the_example_query_of_pgvector_runs_as_it_stands(store, tmp_path: Path) -> None:
    """The files are meant to be typed in as the README says; the index must build, too."""
    (engine,) = [engine for engine in ENGINES if engine.name == "pgvector"]
    if reason := engine.missing():
        pytest.skip(reason)
    documents = random_rows(50, 20, seed=2)
    corpus = store(tmp_path / "corpus", sparse.csr_array(documents), IDS[:50])
    queries = Queries(sparse.csr_array(documents[7:8]), ["q"])
    export_vectors(corpus, tmp_path / "out", "pgvector", queries=queries)
    searcher = engine(tmp_path / "out", tmp_path)
    try:
        searcher.build()
        first = searcher.sql((tmp_path / "out" / "example-query.sql").read_text()).splitlines()[2]
        assert first.split("|")[0].strip() == "doc-7"
        assert float(first.split("|")[1]) == pytest.approx(float((documents[7] ** 2).sum()), rel=1e-5)
        searcher.sql((tmp_path / "out" / "index.sql").read_text())
    finally:
        searcher.close()


def test_ids_that_text_formats_escape_survive_in_postgresql(store, tmp_path: Path) -> None:
    """COPY reads a backslash, a tab and a line end as more than letters."""
    (engine,) = [engine for engine in ENGINES if engine.name == "pgvector"]
    if reason := engine.missing():
        pytest.skip(reason)
    ids = ["tab\tid", "back\\slash", "\\N", "line\nend", "return\rid", "한국", "\\."]
    corpus = store(tmp_path / "corpus", sparse.csr_array(random_rows(len(ids), 20, seed=3)), ids)
    queries = Queries(sparse.csr_array(random_rows(1, 8, seed=4)), ["q"])
    export_vectors(corpus, tmp_path / "out", "pgvector", queries=queries)
    searcher = engine(tmp_path / "out", tmp_path)
    try:
        searcher.build()
        select = "SELECT json_agg(id ORDER BY position)::text FROM lexforge"
        kept = searcher.sql(f"COPY ({select}) TO STDOUT (FORMAT csv, QUOTE '~');")
        assert json.loads(kept.strip("~")) == ids
    finally:
        searcher.close()
