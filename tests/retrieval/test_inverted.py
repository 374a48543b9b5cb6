"""The inverted index: exactness by scipy's own product, storage, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from lexforge.kernels import postings
from lexforge.kernels.postings import top_k
from lexforge.kernels.postings_layout import Postings, PostingsFiles
from lexforge.retrieval import Hits, InvertedIndex

DOCUMENTS = np.array([[1, 0, 2], [0, 3, 0], [1, 1, 1], [0, 0, 0], [1, 0, 2]])
IDS = ["a", "b", "c", "d", "e"]


def csr(dense) -> sparse.csr_array:
    return sparse.csr_array(np.asarray(dense, np.float32))


def ranked(scores: np.ndarray, ids: list[str], k: int) -> list[list[tuple[str, float]]]:
    """Every document with a positive score, by score and then position."""
    return [
        sorted(
            ((name, score) for name, score in zip(ids, row.tolist(), strict=True) if score > 0),
            key=lambda hit: -hit[1],
        )[:k]
        for row in scores
    ]


def pairs(hits: Hits) -> list[list[tuple[str, float]]]:
    return [
        list(zip(row, scores.tolist(), strict=True))
        for row, scores in zip(hits.ids, hits.scores, strict=True)
    ]


def test_additions_keep_the_block_size_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default depends on the number of documents, and parts with unlike blocks cannot be joined."""
    monkeypatch.setattr(postings, "BLOCK_SIZES", {8: 1, 32: 2})
    rng = np.random.default_rng(0)
    documents, queries = rng.integers(0, 3, (40, 6)), rng.integers(0, 3, (9, 6))
    ids = [f"d{i}" for i in range(40)]
    expected = ranked(queries @ documents.T, ids, 5)
    for cut, block_size in ((5, 1), (30, 2), (36, postings.LARGE_BLOCK)):
        index = InvertedIndex(6)
        index.add(csr(documents[:cut]), ids[:cut])
        index.add(csr(documents[cut:]), ids[cut:])
        assert index.postings().block_size == block_size
        assert pairs(index.search(csr(queries), 5)) == expected


@settings(max_examples=40, deadline=None)
@given(
    documents=hnp.arrays(np.int64, (17, 5), elements=st.integers(0, 3)),
    queries=hnp.arrays(np.int64, (4, 5), elements=st.integers(0, 3)),
    k=st.integers(1, 20),
    cut=st.integers(0, 17),
)
def test_exact_with_ties_however_it_was_filled(
    documents, queries, k: int, cut: int, tmp_path_factory
) -> None:
    """One build, two additions, and a saved and loaded index must all equal numpy's integer product."""
    ids = [f"d{i}" for i in range(17)]
    expected = ranked(queries @ documents.T, ids, k)
    whole = InvertedIndex.build(csr(documents), ids)
    pieces = InvertedIndex(5)
    pieces.add(csr(documents[:cut]), ids[:cut])
    pieces.add(csr(documents[cut:]), ids[cut:])
    folder = tmp_path_factory.mktemp("index") / "saved"
    pieces.save(folder)
    for index in (whole, pieces, InvertedIndex.load(folder)):
        assert pairs(index.search(csr(queries), k)) == expected
        assert len(index) == 17
    assert whole.nbytes > 0


def test_documents_that_are_added_after_a_search_are_found() -> None:
    """A search keeps the documents arranged for the next one, which must not miss those that came since."""
    index = InvertedIndex(2)
    for added in range(1, 4):
        index.add(csr([[added, 1]]), [f"d{added}"])
        hits = index.search(csr([[1, 0]]), 5)
        assert pairs(hits) == [[(f"d{number}", float(number)) for number in range(added, 0, -1)]]


def test_input_is_made_canonical_and_left_alone() -> None:
    """Unsorted, repeated and zero entries, and integers, are common in CSR matrices made by hand."""
    matrix = sparse.csr_matrix(
        (np.array([2, 1, 1, 0]), np.array([2, 0, 2, 1]), np.array([0, 3, 4])), shape=(2, 3)
    )
    before = matrix.data.copy(), matrix.indices.copy()
    hits = InvertedIndex.build(matrix, ["a", "b"]).search(matrix, 5)
    assert pairs(hits) == [[("a", 10.0)], []]
    assert (matrix.data == before[0]).all()
    assert (matrix.indices == before[1]).all()


def test_an_empty_index_is_searched_saved_and_filled(tmp_path: Path) -> None:
    """Adding in blocks starts from nothing."""
    InvertedIndex(3).save(tmp_path / "index")
    index = InvertedIndex.load(tmp_path / "index")
    assert index.search(csr([[1, 1, 1]]), 2).ids == [[]]
    index.add(csr(DOCUMENTS), IDS)
    assert index.search(csr([[0, 1, 0]]), 2).ids == [["b", "c"]]


def test_a_loaded_index_is_memory_mapped(tmp_path: Path) -> None:
    """An index larger than memory can be searched only if its arrays stay on disk."""
    InvertedIndex.build(csr(DOCUMENTS), IDS).save(tmp_path / "index")
    index = InvertedIndex.load(tmp_path / "index")
    assert isinstance(index.postings().weights.base, np.memmap)
    index.add(csr([[9, 0, 0]]), ["f"])
    assert index.search(csr([[1, 0, 0]]), 1).ids == [["f"]]


@pytest.mark.parametrize(("documents", "block_size"), [(90, 1), (200_000, 2), (3_000_000, 4)])
def test_an_index_is_written_block_by_block(documents: int, block_size: int, tmp_path: Path) -> None:
    """Memory holds one block; the index answers as one of the same blocks that were added in memory."""
    dense = np.random.default_rng(0).integers(0, 4, (90, 30)).astype(np.float32)
    names = [f"d{number}" for number in range(90)]
    cuts = ((0, 0), (0, 40), (40, 41), (41, 41), (41, 90))
    blocks = [(csr(dense[first:last]), names[first:last]) for first, last in cuts]
    InvertedIndex.write(tmp_path / "index", iter(blocks), 30, documents, "cosine")
    written, added = InvertedIndex.load(tmp_path / "index"), InvertedIndex(30, "cosine")
    for vectors, ids in blocks:
        added.add(vectors, ids)
    assert written.postings().block_size == block_size
    queries = csr(dense[::7])
    assert pairs(written.search(queries, 20)) == pairs(added.search(queries, 20))
    assert written.ids == names
    assert np.array_equal(written.vectors(["d40", "d3"]).toarray(), added.vectors(["d40", "d3"]).toarray())
    written.save(tmp_path / "again")
    again = InvertedIndex.load(tmp_path / "again", verify=True)
    assert pairs(again.search(queries, 20)) == pairs(added.search(queries, 20))


def test_a_block_that_is_refused_leaves_no_index(tmp_path: Path) -> None:
    """An index of half of the documents would be searched without a word."""
    blocks = [(csr([[1, 2]]), ["a"]), (csr([[1, 0]]), ["a"])]
    with pytest.raises(ValueError, match="'a', which an earlier document has"):
        InvertedIndex.write(tmp_path / "index", blocks, 2, 2)
    assert not list(tmp_path.iterdir())
    (tmp_path / "a file").touch()
    with pytest.raises(FileExistsError):
        InvertedIndex.write(tmp_path, blocks[:1], 2, 1)


@pytest.mark.parametrize("failing", [2, 12])
def test_a_segment_that_cannot_be_written_leaves_no_index(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is met in another thread, up to eight segments later, or only at the end."""
    add, written = PostingsFiles.add, []

    def fail(files: PostingsFiles, part: Postings) -> None:
        written.append(part)
        if len(written) == failing + 1:  # the first is the empty part
            raise OSError("no space left on device")
        add(files, part)

    monkeypatch.setattr(PostingsFiles, "add", fail)
    blocks = ((csr(DOCUMENTS), [f"{block}-{name}" for name in IDS]) for block in range(12))
    with pytest.raises(OSError, match="no space left"):
        InvertedIndex.write(tmp_path / "index", blocks, csr(DOCUMENTS).shape[1], 12 * len(IDS))
    assert not list(tmp_path.iterdir())


def replaced(row: int, column: int, value: float) -> sparse.csr_array:
    matrix = csr(DOCUMENTS).astype(np.float64)
    matrix.data[matrix.indptr[row] + column] = value
    return matrix


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf, -np.inf, 1e39])
def test_weights_are_finite_and_not_negative(value: float) -> None:
    """A negative weight breaks the exactness of a zero score, NaN that of every comparison."""
    index = InvertedIndex.build(csr(DOCUMENTS), IDS)
    with pytest.raises(ValueError, match="documents row 2, column 1: weight"):
        InvertedIndex.build(replaced(2, 1, value), IDS)
    with pytest.raises(ValueError, match="queries row 2, column 1: weight"):
        index.search(replaced(2, 1, value), 3)


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        (
            lambda index: index.search(np.ones((1, 3)), 1),
            TypeError,
            "queries must be .*; received ndarray of dtype",
        ),
        (lambda index: index.search(csr([[1, 1, 1]]).tocsc(), 1), TypeError, "scipy CSR matrix"),
        (lambda index: index.search(csr([[1, 1, 1]]).astype(complex), 1), ValueError, "dtype complex128"),
        (lambda index: InvertedIndex(0), ValueError, "num_terms must be at least 1; received 0"),
    ],
)
def test_refusals(action, error: type[Exception], message: str) -> None:
    """Each would otherwise be a wrong answer or a crash far from its cause."""
    with pytest.raises(error, match=message):
        action(InvertedIndex.build(csr(DOCUMENTS), IDS))


def test_column_numbers_outside_the_matrix_are_refused() -> None:
    """The compiled search would read outside its arrays."""
    matrix = csr(DOCUMENTS)
    matrix.indices[0] = 3
    with pytest.raises(ValueError, match=r"indices|index values"):
        InvertedIndex.build(matrix, IDS)


@pytest.mark.parametrize(("name", "value"), [("terms.npy", 65_535), ("list_blocks.npy", 65_535)])
def test_a_forged_number_reads_no_other_memory(name: str, value: int, tmp_path: Path) -> None:
    """The terms of ten million documents are not read when an index is opened, but where they are used."""
    dense = np.zeros((50, 3), np.float32)
    dense[:, 0] = 1
    dense[7, 1:] = 2  # a rare term, which has a list
    index = InvertedIndex.build(csr(dense), [str(row) for row in range(50)])
    index.save(tmp_path / "index")
    array = np.load(tmp_path / "index" / name)
    np.save(tmp_path / "index" / name, np.full_like(array, value))
    resign(tmp_path / "index")
    forged = InvertedIndex.load(tmp_path / "index")
    _, scores, _ = top_k(csr([[1, 1, 1]]).astype(np.float32), forged.postings(), 5, "pruned")
    assert (scores <= 5).all()
    if name == "terms.npy":
        with pytest.raises(ValueError, match="a term must be below 3; received 65535"):
            forged.vectors()


def resign(folder: Path) -> None:
    """Write a manifest that fits the files as they are now."""
    from lexforge.storage.manifest import write_manifest

    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").unlink()
    write_manifest(folder, manifest["format"], manifest["fields"])


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("terms.npy", np.zeros(8, np.int64)),
        ("weights.npy", np.ones(8, np.float64)),
        ("weights.npy", np.ones(8, np.uint8)),
        ("weights.npy", np.ones(7, np.float32)),
        ("offsets.npy", np.array([0, 9, 3, 6, 6, 8])),
        ("offsets.npy", np.array([0, 3, 5, 6, 6, 9])),
        ("offsets.npy", np.array([0, 3, 8])),
        ("starts.npy", np.array([0, 6])),
        ("first_blocks.npy", np.array([0, 9])),
        ("positions.npy", np.array([0, 1, 2, 3, 3])),
        ("positions.npy", np.array([0, 1, 2, 3, 5])),
        ("positions.npy", np.array([0, 1, 2, 3, -1])),
        ("scales.npy", np.ones((1, 2), np.float32)),
        ("dense_starts.npy", np.array([[0, 2, 50]])),
        ("list_starts.npy", np.array([[0, 0, 0, 1]])),
        ("list_blocks.npy", np.zeros(1, np.uint16)),
        ("terms.npy", np.array(["x"] * 8, object)),
    ],
)
def test_arrays_that_do_not_fit_are_refused_even_with_good_checksums(name, array, tmp_path: Path) -> None:
    """The compiled search trusts the arrays: a forged index must not read other memory."""
    InvertedIndex.build(csr(DOCUMENTS), IDS).save(tmp_path / "index")
    np.save(tmp_path / "index" / name, array, allow_pickle=True)
    resign(tmp_path / "index")
    with pytest.raises(ValueError, match="is not an inverted index of lexforge"):
        InvertedIndex.load(tmp_path / "index")


def test_resigned_but_unchanged_loads(tmp_path: Path) -> None:
    """The helper of the test above must not be what makes it fail."""
    InvertedIndex.build(csr(DOCUMENTS), IDS).save(tmp_path / "index")
    resign(tmp_path / "index")
    assert len(InvertedIndex.load(tmp_path / "index")) == 5
