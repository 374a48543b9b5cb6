"""Dense search: exact order by numpy, approximate layouts by recall, storage, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lexforge.retrieval import FaissIndex
from lexforge.storage.manifest import write_manifest

IDS = [f"d{i}" for i in range(500)]
VECTORS = np.random.default_rng(2).normal(size=(100, 4)).astype(np.float32)


def ranked(scores: np.ndarray, ids: list[str], k: int) -> list[list[str]]:
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return [[ids[position] for position in row] for row in order]


@settings(max_examples=40, deadline=None)
@given(
    documents=hnp.arrays(np.float32, (70, 3), elements=st.sampled_from([-1.0, 0.0, 1.0])),
    rows=st.sampled_from([1, 3, 25]),
    k=st.integers(1, 80),
)
def test_flat_is_exact_with_ties_at_every_rank(documents, rows: int, k: int) -> None:
    """FAISS keeps any of the documents that tie at rank k; whole numbers make its sums exact."""
    queries = np.resize(np.array([[1, 2, 3], [0, 0, 0], [-1, 1, 0]], np.float32), (rows, 3))
    hits = FaissIndex.build(documents, IDS[:70]).search(queries, k)
    scores = queries @ documents.T
    assert hits.ids == ranked(scores, IDS, k)
    for row, expected in zip(hits.scores, -np.sort(-scores, axis=1), strict=True):
        assert row.tolist() == expected[:k].tolist()


def test_cosine_normalises_both_sides() -> None:
    """By hand: (3, 4) against (1, 0) is .6; a zero vector has similarity 0."""
    index = FaissIndex.build(np.array([[3, 4], [5, 0], [0, 0]], float), ["x", "y", "z"], "cosine")
    hits = index.search(np.array([[2, 0]], np.float16), 9)
    assert hits.ids == [["y", "x", "z"]]
    np.testing.assert_allclose(hits.scores[0], [1, 0.6, 0], rtol=1e-6)  # float32 rounding


@pytest.mark.parametrize(
    ("layout", "parameters"),
    [
        ("Flat", ""),
        ("HNSW16", "efConstruction=200,efSearch=128"),
        ("IVF10,Flat", "nprobe=5"),
        ("HNSW8", "efSearch=64"),
        ("IVF7,Flat", "nprobe=7"),
    ],
)
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_every_layout_finds_and_is_stored(
    layout: str, parameters: str, similarity: str, tmp_path: Path
) -> None:
    """Recall of at least .9 says the graph or lists are searched as set; loading changes no hit."""
    rng = np.random.default_rng(0)
    documents = rng.normal(size=(500, 8)) * rng.uniform(0.9, 1.1, (500, 1))
    queries = rng.normal(size=(30, 8))
    exact = FaissIndex.build(documents, IDS, similarity).search(queries, 10)
    index = FaissIndex.build(documents[:400], IDS[:400], similarity, layout, parameters)
    index.add(documents[400:], IDS[400:])
    hits = index.search(queries, 10)
    common = [len(set(one) & set(other)) for one, other in zip(hits.ids, exact.ids, strict=True)]
    assert np.mean(common) >= 9
    index.save(tmp_path / "index")
    loaded = FaissIndex.load(tmp_path / "index")
    assert loaded.search(queries, 10).ids == hits.ids
    assert (loaded.layout, loaded.parameters) == (layout, parameters)
    assert (loaded.similarity, len(loaded)) == (similarity, 500)
    assert loaded.nbytes == index.nbytes > 500 * 8 * 4


def test_an_index_that_a_full_disk_has_cut_is_not_saved(tmp_path: Path) -> None:
    """FAISS only prints that it could not close its file, and the cut one would get a good checksum."""
    resource = pytest.importorskip("resource", reason="only POSIX systems limit a process")
    index = FaissIndex.build(VECTORS, IDS[:100])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            index.save(tmp_path / "index")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_search_settings_reach_faiss() -> None:
    """One probe of ten lists must see less than all of them, and a narrow search of a graph miss some."""
    documents = np.random.default_rng(1).normal(size=(300, 4)).astype(np.float32)
    index = FaissIndex.build(documents, IDS[:300], "dot", "IVF10,Flat", "nprobe=1")
    assert len(index.search(documents[:1], 300).ids[0]) < 300
    queries = np.random.default_rng(2).normal(size=(50, 4)).astype(np.float32)
    best = FaissIndex.build(documents, IDS[:300]).search(queries, 1).ids
    narrow, wide = (
        FaissIndex.build(documents, IDS[:300], "dot", "HNSW2", f"efSearch={width}").search(queries, 1).ids
        for width in (1, 300)
    )
    assert np.mean([one == other for one, other in zip(narrow, best, strict=True)]) < 0.9
    assert np.mean([one == other for one, other in zip(wide, best, strict=True)]) > 0.95


def test_an_empty_index_finds_nothing() -> None:
    """Adding in blocks starts from nothing."""
    index = FaissIndex(4)
    assert index.search(np.ones((2, 4)), 3).ids == [[], []]
    assert index.search(np.ones((0, 4)), 3).ids == []


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        (lambda index: index.add(np.array([[1, 1], [np.inf, 0]]), ["c", "d"]), ValueError, "documents row 1"),
        (lambda index: index.search(np.ones(2), 1), TypeError, "2-dimensional float array"),
        (lambda index: index.search([[1.0, 1.0]], 1), TypeError, "received list"),
        (
            lambda index: FaissIndex.build(np.ones((2, 2)), ["a", "b"], layout="IVF3,Flat"),
            ValueError,
            "as many as the 3 IVF lists; received 2 documents",
        ),
    ],
)
def test_refusals(action, error: type[Exception], message: str) -> None:
    """Each would otherwise be a wrong answer or a crash inside FAISS."""
    with pytest.raises(error, match=message):
        action(FaissIndex.build(np.eye(2), ["a", "b"]))


def ivf_on_disk(lists: Path) -> faiss.Index:
    """An index whose lists lie in a file outside the directory that is loaded."""
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(4), 4, 2, faiss.METRIC_INNER_PRODUCT)
    index.train(VECTORS)
    outside = faiss.OnDiskInvertedLists(2, index.code_size, str(lists))
    outside.this.disown()  # FAISS frees it with the index
    index.replace_invlists(outside, True)
    index.add(VECTORS)
    return index


def ivf_with_far_centres(_: Path) -> faiss.Index:
    """An index whose vectors are compared by inner product, but whose centres are found by distance."""
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(4), 4, 2, faiss.METRIC_INNER_PRODUCT)
    index.train(VECTORS)
    index.add(VECTORS)
    return index


def filled(index: faiss.Index) -> faiss.Index:
    index.add(VECTORS)
    return index


@pytest.mark.parametrize(
    ("layout", "forged", "message"),
    [
        ("IVF2,Flat", ivf_on_disk, "OnDiskInvertedLists"),
        ("IVF2,Flat", ivf_with_far_centres, "IndexFlatL2 with metric 1"),
        ("Flat", lambda _: filled(faiss.IndexFlatL2(4)), "IndexFlatL2 with metric 1"),
        ("Flat", lambda _: filled(faiss.IndexHNSWFlat(4, 8, faiss.METRIC_INNER_PRODUCT)), "IndexHNSWFlat"),
        ("HNSW8", lambda _: filled(faiss.IndexHNSWFlat(4, 8)), "IndexHNSWFlat with metric 1"),
        ("HNSW8", lambda _: filled(faiss.IndexFlatIP(4)), "IndexFlatIP with metric 0"),
    ],
)
def test_another_index_of_faiss_is_refused_even_with_good_checksums(
    layout: str, forged: Callable[[Path], faiss.Index], message: str, tmp_path: Path
) -> None:
    """By distance it would rank wrongly, and lists elsewhere are another file, whatever that holds."""
    FaissIndex.build(VECTORS, IDS[: len(VECTORS)], layout=layout).save(tmp_path / "index")
    faiss.write_index(forged(tmp_path / "lists"), str(tmp_path / "index" / "index.faiss"))
    manifest = json.loads((tmp_path / "index" / "manifest.json").read_text())
    (tmp_path / "index" / "manifest.json").unlink()
    write_manifest(tmp_path / "index", manifest["format"], manifest["fields"])
    with pytest.raises(ValueError, match=message):
        FaissIndex.load(tmp_path / "index")
