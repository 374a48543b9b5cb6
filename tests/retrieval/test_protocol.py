"""One suite for every backend: what an index promises, whatever finds its hits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from lexforge.retrieval import (
    FaissIndex,
    Hits,
    Index,
    InvertedIndex,
    MilvusIndex,
    QdrantIndex,
)
from lexforge.retrieval.servers import server

WIDTH, COUNT = 12, 300
IDS = [f"d{number}" for number in range(COUNT)]
COLLECTIONS = count()


@dataclass(frozen=True)
class Backend:
    """A backend under test.

    Args:
        name: Shown by pytest.
        index: The class.
        options: Arguments of `build` beside documents and ids.
        is_sparse: Takes CSR matrices, else arrays.
        exact: Finds the k best; the others must find nine of ten.
        package: What must be importable, else its tests skip.
    """

    name: str
    index: Any
    options: dict[str, Any]
    is_sparse: bool
    exact: bool
    package: str | None = None

    def vectors(self, dense: np.ndarray) -> Any:
        """The rows as the backend takes them."""
        values = np.asarray(dense, np.float32)
        return sparse.csr_array(values) if self.is_sparse else values

    def build(self, dense: np.ndarray, ids: list[str], similarity: str = "dot") -> Index:
        options = self.options
        if self.index in (MilvusIndex, QdrantIndex):  # each build is an index of its own
            options = {**options, "collection": f"c{next(COLLECTIONS)}"}
        return self.index.build(self.vectors(dense), ids, similarity=similarity, **options)


BACKENDS = [
    Backend("inverted", InvertedIndex, {}, True, True),
    Backend("faiss-flat", FaissIndex, {}, False, True),
    Backend(
        "faiss-hnsw", FaissIndex, {"layout": "HNSW64", "parameters": f"efSearch={2 * COUNT}"}, False, False
    ),
    Backend("faiss-ivf", FaissIndex, {"layout": "IVF4,Flat", "parameters": "nprobe=4"}, False, False),
    Backend("milvus-sparse", MilvusIndex, {}, True, True, "milvus_lite"),
    Backend("milvus-dense", MilvusIndex, {}, False, True, "milvus_lite"),
    Backend("qdrant", QdrantIndex, {}, True, True, "qdrant_client"),
]


def available(backend: Backend, tmp_path_factory) -> Backend:
    """The backend with a file of its own, if it keeps one; an extra that is not installed skips its tests."""
    if backend.package is None:
        return backend
    extra = "qdrant" if backend.index is QdrantIndex else "milvus"
    pytest.importorskip(backend.package, reason=f"the extra `{extra}` is not installed")
    uri = str(tmp_path_factory.mktemp(extra) / f"vectors.{'qdrant' if extra == 'qdrant' else 'db'}")
    return replace(backend, options={**backend.options, "uri": uri})


@pytest.fixture(autouse=True)
def _several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BATCH_ROWS", 64)


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def backend(request, tmp_path_factory) -> Backend:
    return available(request.param, tmp_path_factory)


@pytest.fixture(
    params=[backend for backend in BACKENDS if backend.is_sparse], ids=lambda backend: backend.name
)
def sparse_backend(request, tmp_path_factory) -> Backend:
    return available(request.param, tmp_path_factory)


def whole_numbers(rows: int, seed: int) -> np.ndarray:
    """Positive whole numbers, so that every sum is exact, ties abound and no score is 0."""
    return np.random.default_rng(seed).integers(1, 4, (rows, WIDTH))


def expected(queries: np.ndarray, documents: np.ndarray, k: int) -> list[list[int]]:
    """By numpy's integer product and a stable sort: positions, best first, ties ascending."""
    return np.argsort(-(queries @ documents.T), axis=1, kind="stable")[:, :k].tolist()


def check_hits(
    backend: Backend, hits: Hits, queries: np.ndarray, documents: np.ndarray, ids: list[str], k: int
) -> None:
    """Exact backends equal the oracle; the others find most, with its scores; all in one order."""
    product = queries @ documents.T
    place = {name: position for position, name in enumerate(ids)}
    assert len(hits) == len(queries)
    recall = []
    for row, wanted in enumerate(expected(queries, documents, k)):
        found = [place[name] for name in hits.ids[row]]
        assert len(found) == len(set(found)) == len(hits.scores[row])
        assert hits.scores[row].dtype == np.float32
        order = sorted(zip((-hits.scores[row]).tolist(), found, strict=True))
        assert [position for _, position in order] == found
        np.testing.assert_array_equal(hits.scores[row], product[row][found])  # whole numbers
        if backend.exact:
            assert found == wanted
        # of equal scores at rank k any may be found: what counts is the score
        recall.append(np.mean(np.sort(product[row][found])[::-1] >= product[row][wanted][: len(found)] - 1))
        assert len(found) >= 0.9 * len(wanted)
    assert np.mean(recall) >= 0.9


def test_build_add_save_and_load_find_the_same(backend: Backend, tmp_path: Path) -> None:
    """Ties at every rank; an index filled in blocks, or read from disk, must not rank otherwise."""
    documents, queries = whole_numbers(COUNT, 0), whole_numbers(9, 1)
    whole = backend.build(documents, IDS)
    pieces = backend.build(documents[:200], IDS[:200])
    for start in (200, 201, 260):
        stop = {200: 201, 201: 260, 260: COUNT}[start]
        pieces.add(backend.vectors(documents[start:stop]), IDS[start:stop])
    pieces.save(tmp_path / "index")
    loaded = type(pieces).load(tmp_path / "index")
    for index in (whole, pieces, loaded):
        assert len(index) == COUNT
        assert index.nbytes > 0
        for k in (1, 10, COUNT, COUNT + 50):
            hits = index.search(backend.vectors(queries), k)
            check_hits(backend, hits, queries, documents, IDS, k)
            if backend.exact:
                assert hits.ids == whole.search(backend.vectors(queries), k).ids
    assert len(type(pieces).load(tmp_path / "index", verify=True)) == COUNT


def test_a_loaded_index_is_added_to(backend: Backend, tmp_path: Path) -> None:
    """Documents that come later must not need the first ones again."""
    documents, queries = whole_numbers(COUNT, 2), whole_numbers(5, 3)
    backend.build(documents[:250], IDS[:250]).save(tmp_path / "index")
    index = backend.index.load(tmp_path / "index")
    index.add(backend.vectors(documents[250:]), IDS[250:])
    check_hits(backend, index.search(backend.vectors(queries), 20), queries, documents, IDS, 20)


of_a_server = pytest.mark.parametrize(
    "backend",
    [backend for backend in BACKENDS if backend.package],
    ids=lambda backend: backend.name,
    indirect=True,
)


@of_a_server
def test_a_collection_that_is_opened_again_goes_on(backend: Backend, tmp_path: Path) -> None:
    """However the documents came in and the collection was found again, it answers alike."""
    documents, queries = whole_numbers(40, 0), whole_numbers(5, 1)
    vectors, asked = backend.vectors(documents), backend.vectors(queries)
    uri = backend.options["uri"]
    with backend.index(uri, "own") as index:
        assert index.search(asked, 3).ids == [[]] * 5
        index.add(vectors[:15], IDS[:15])
    with backend.index(uri, "own") as index:
        assert len(index) == 15
        index.add(vectors[15:], IDS[15:40])
        index.save(tmp_path / "saved")
        with backend.index.load(tmp_path / "saved", verify=True) as loaded:
            check_hits(backend, loaded.search(asked, 10), queries, documents, IDS[:40], 10)
            if backend.is_sparse:
                assert loaded.nbytes == index.nbytes == 8 * vectors.nnz
        # the other's close left this one its client
        check_hits(backend, index.search(asked, 10), queries, documents, IDS[:40], 10)


@of_a_server
def test_a_collection_of_something_else_is_refused(backend: Backend, tmp_path: Path) -> None:
    """Two corpora in one collection would answer for neither, and a saved index does not hold its vectors."""
    vectors, uri = backend.vectors(whole_numbers(11, 0)), backend.options["uri"]
    other_type = np.ones((1, WIDTH), np.float32) if backend.is_sparse else sparse.csr_array(np.eye(1, WIDTH))
    with backend.index.build(vectors[:10], IDS[:10], uri=uri, collection="own") as index:
        index.save(tmp_path / "saved")
        with pytest.raises(ValueError, match=r"holds 10 documents, .* or choose another name"):
            backend.index.build(vectors[:10], IDS[:10], uri=uri, collection="own")
        with pytest.raises(ValueError, match="has similarity 'dot'; received 'cosine'"):
            backend.index(uri, "own", similarity="cosine")
        with pytest.raises(TypeError, match="documents must be a 2-dimensional"):
            index.add(other_type, ["other"])
        index.add(vectors[10:], ["later"])
    with pytest.raises(ValueError, match=r"must hold the 10 documents that .* names; it holds 11"):
        backend.index.load(tmp_path / "saved")
    Path(uri).rename(tmp_path / f"moved{Path(uri).suffix}")
    with pytest.raises(FileNotFoundError, match=r"vectors\.\w+ .* does not exist"):
        backend.index.load(tmp_path / "saved")


@of_a_server
def test_a_second_writer_to_a_server_is_refused(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would write over the documents of the first, because each counts positions for itself."""
    documents = backend.vectors(whole_numbers(4, 0))
    first = backend.build(whole_numbers(2, 0), IDS[:2])
    upsert = first.client.upsert

    def interrupted(*arguments: Any, **options: Any) -> None:
        upsert(*arguments, **options)
        raise KeyboardInterrupt

    with backend.index(first.uri, first.collection) as second:
        with monkeypatch.context() as patch:
            patch.setattr(first.client, "upsert", interrupted)
            with pytest.raises(KeyboardInterrupt):
                first.add(documents[[2]], IDS[2:3])
        first.add(documents[[2]], IDS[2:3])  # what was carried out without an answer is its own
        with pytest.raises(ValueError, match="holds 3 documents and 2 when this index last looked"):
            second.add(documents[[3]], IDS[3:4])
    with backend.index(first.uri, first.collection) as again:
        assert again.ids == IDS[:3]


def test_cosine_ranks_by_angle(backend: Backend, tmp_path: Path) -> None:
    """Lengths must not count, also after loading."""
    documents = np.random.default_rng(4).uniform(0.1, 1, (100, WIDTH))
    index = backend.build(documents * np.linspace(1, 50, 100)[:, None], IDS[:100], "cosine")
    index.save(tmp_path / "index")
    loaded = backend.index.load(tmp_path / "index")
    hits = loaded.search(backend.vectors(documents[:20] * 7), 3)
    assert loaded.similarity == "cosine"
    assert np.mean([row[0] == IDS[number] for number, row in enumerate(hits.ids)]) >= 0.9
    for scores in hits.scores:
        assert scores[0] == pytest.approx(1, abs=1e-6)


def test_no_query_is_no_row(backend: Backend) -> None:
    """Empty input has a defined, empty result."""
    index = backend.build(whole_numbers(50, 0), IDS[:50])
    assert index.search(backend.vectors(np.zeros((0, WIDTH))), 3).ids == []


def test_an_empty_query_finds_nothing_in_a_sparse_index(sparse_backend: Backend) -> None:
    """A document with score 0 is no hit where weights are not negative."""
    backend = sparse_backend
    index = backend.build(whole_numbers(50, 0), IDS[:50])
    rows = np.zeros((3, WIDTH))
    rows[1, 2] = 1
    hits = index.search(backend.vectors(rows), 3)
    assert [len(row) for row in hits.ids] == [0, 3, 0]


NAN, NARROW = np.full((1, WIDTH), np.nan), np.ones((1, 3))
ONE, TWO = np.ones((1, WIDTH)), np.ones((2, WIDTH))
REFUSALS: list[tuple[Callable[[Backend, Any], Any], str]] = [
    (lambda backend, index: index.search(backend.vectors(ONE), 0), "k must be at least 1; received 0"),
    (lambda backend, index: index.search(backend.vectors(NARROW), 1), "queries have 3 columns"),
    (lambda backend, index: index.search(backend.vectors(NAN), 1), "queries row 0"),
    (lambda backend, index: index.add(backend.vectors(NARROW), ["new"]), "documents have 3 columns"),
    (lambda backend, index: index.add(backend.vectors(NAN), ["new"]), "documents row 0"),
    (lambda backend, index: index.add(backend.vectors(ONE), ["d7"]), "'d7', which an earlier"),
    (lambda backend, index: index.add(backend.vectors(TWO), ["x", "x"]), "'x', which an earlier"),
    (lambda backend, index: index.add(backend.vectors(TWO), ["x"]), "1 ids for 2 documents"),
    (lambda backend, index: backend.build(TWO, IDS[:2], "euclid"), "received 'euclid'"),
]


def test_bad_input_is_refused_and_changes_nothing(backend: Backend) -> None:
    """Each would otherwise be a wrong answer; after an error that the caller caught the index still works."""
    documents, queries = whole_numbers(50, 0), whole_numbers(4, 1)
    index = backend.build(documents, IDS[:50])
    for action, message in REFUSALS:
        with pytest.raises(ValueError, match=message):
            action(backend, index)
        assert len(index) == 50
        check_hits(backend, index.search(backend.vectors(queries), 5), queries, documents, IDS[:50], 5)


def test_a_negative_weight_is_refused_by_a_sparse_index(sparse_backend: Backend) -> None:
    """Bounds are upper bounds only of weights that are not negative."""
    with pytest.raises(ValueError, match="documents row 0, column 0: weight -1"):
        sparse_backend.build(-np.ones((2, WIDTH)), ["a", "b"])


def test_saved_files_that_were_cut_altered_or_lost_are_refused(backend: Backend, tmp_path: Path) -> None:
    """A copy that stopped half-way, or a file of another index, must not be searched."""
    folder = tmp_path / "index"
    backend.build(whole_numbers(60, 0), IDS[:60]).save(folder)
    for file in sorted(folder.iterdir()):
        content = file.read_bytes()
        for damaged in (content[:-4], content[:-4] + bytes([content[-4] ^ 1]) + content[-3:]):
            file.write_bytes(damaged)
            with pytest.raises(ValueError, match=file.name):
                backend.index.load(folder)
        file.unlink()
        with pytest.raises(FileNotFoundError, match=file.name):
            backend.index.load(folder)
        file.write_bytes(content)
    assert len(backend.index.load(folder)) == 60


def test_a_save_overwrites_nothing(backend: Backend, tmp_path: Path) -> None:
    """A memory-mapped index would be pulled from under its reader."""
    index = backend.build(whole_numbers(50, 0), IDS[:50])
    index.save(tmp_path / "index")
    with pytest.raises(FileExistsError, match="not an empty directory"):
        index.save(tmp_path / "index")
