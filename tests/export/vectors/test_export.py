"""Vectors written for other engines: what is read back, how files are cut, what an interruption leaves."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from lexforge.corpus import encode_corpus
from lexforge.corpus.encoded_corpus import EncodedCorpus
from lexforge.export import VECTOR_TARGETS, Queries, check_vector_export, export_vectors, term_names

WIDTH = 40
TERMS = [
    "hi",
    "##s",
    ".",
    "서울",
    'quo"te',
    "back\\slash",
    "a.b",
    "white space",
    *(f"t{i}" for i in range(8, WIDTH)),
]
IDS = ["plain", "한국", 'quo"te', "tab\tid", "back\\slash", "5", *(f"d{i}" for i in range(6, 30))]
TEXT_TARGETS = sorted(set(VECTOR_TARGETS) - {"ciff"})  # the test of CIFF reads its bytes


def read_sparsevec(text: str) -> dict[int, float]:
    """PostgreSQL's text of a sparsevec, columns counted from 1."""
    inside, width = re.fullmatch(r"\{(.*)\}/(\d+)", text).groups()
    assert int(width) == WIDTH
    return {int(pair.split(":")[0]) - 1: float(pair.split(":")[1]) for pair in inside.split(",") if pair}


def read_documents(target: str, folder: Path, files: list[str]) -> list[tuple[str, dict]]:
    """Ids and vectors of all documents, read by nothing but `json` and `re`; keys are as written."""
    found = []
    for name in files:
        text = (folder / name).read_text()
        lines = text.splitlines()
        if target in ("opensearch", "opensearch-sparse-vector", "elasticsearch"):
            pairs = zip(lines[::2], lines[1::2], strict=True)
            found += [(json.loads(a)["index"]["_id"], json.loads(b)["vector"]) for a, b in pairs]
        elif target == "anserini":
            found += [(row["id"], row["vector"]) for row in map(json.loads, lines)]
        elif target == "vespa":
            for row in map(json.loads, lines):
                assert row["put"] == f"id:lexforge:lexforge::{row['fields']['document_id']}"
                found.append((row["fields"]["document_id"], row["fields"]["vector"]))
        else:
            for line in lines:
                position, name, vector = line.split("\t")
                assert int(position) == len(found)
                found.append((name.replace("\\t", "\t").replace("\\\\", "\\"), read_sparsevec(vector)))
    return found


def key_of(target: str, column: int):
    """The key under which a target holds a column, by a rule written down here once more."""
    if target == "pgvector":
        return column
    if target == "opensearch-sparse-vector":
        return str(column)
    bad = {"opensearch": ["."], "anserini": [" "]}.get(target, [])
    return f"[{column}]" if any(letter in TERMS[column] for letter in bad) else TERMS[column]


@pytest.mark.parametrize("target", TEXT_TARGETS)
def test_documents_are_read_back_to_the_last_bit(
    target: str, store, some_vectors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that breaks the JSON, or a digit that is cut, is found by no one until a search is wrong."""
    vectors = some_vectors(30)
    corpus = store(tmp_path / "corpus", vectors, IDS)
    monkeypatch.setattr(VECTOR_TARGETS[target], "shard_bytes", 2000)
    exported = export_vectors(corpus, tmp_path / "out", target, terms=TERMS)
    assert len(exported.files) > 2
    found = read_documents(target, tmp_path / "out", exported.files)
    assert [name for name, _ in found] == IDS
    for row, (_, weights) in zip(vectors.toarray(), found, strict=True):
        scale = exported.survey.scale
        kept = {i: float(w) if scale == 1 else round(float(w) * scale) for i, w in enumerate(row) if w}
        expected = {key_of(target, i): np.float32(w) for i, w in kept.items() if w}
        assert {key: np.float32(weight) for key, weight in weights.items()} == expected


@pytest.mark.parametrize("step", ["shard", "finish", "files"])
@pytest.mark.parametrize("target", ["ciff", "elasticsearch"])
def test_an_interrupted_export_leaves_nothing_and_a_second_one_is_like_any_other(
    target: str, step: str, store, some_vectors, tmp_path: Path, monkeypatch
) -> None:
    """Some of the files, or a leftover among them, would be loaded as the whole corpus."""
    corpus = store(tmp_path / "corpus", some_vectors(30), IDS)
    queries = Queries(some_vectors(5, seed=1), ["q0", "q1", "q2", "q3", "q4"])
    arguments = {"terms": TERMS, "queries": queries}
    monkeypatch.setattr(VECTOR_TARGETS[target], "shard_bytes", 1500)
    original, calls = getattr(VECTOR_TARGETS[target], step), []

    def interrupted(*given):
        calls.append(step)
        if step != "shard" or len(calls) == 2:  # a file of documents is written by then
            raise KeyboardInterrupt
        return original(*given)

    with monkeypatch.context() as patch:
        patch.setattr(VECTOR_TARGETS[target], step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            export_vectors(corpus, tmp_path / "out", target, **arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]

    def contents(folder: Path) -> dict[str, bytes]:
        return {
            str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }

    for name in ("out", "other"):
        export_vectors(corpus, tmp_path / name, target, **arguments)
    assert contents(tmp_path / "out") == contents(tmp_path / "other")


def test_files_stay_below_their_limit(
    store, some_vectors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request above the engine's limit is refused as a whole; one document too large goes alone."""
    corpus = store(tmp_path / "corpus", some_vectors(30), IDS)
    for target, limit in (("pgvector", 1), ("pgvector", 2000), ("anserini", 2000), ("opensearch", 2000)):
        folder = tmp_path / f"{target}-{limit}"
        monkeypatch.setattr(VECTOR_TARGETS[target], "shard_bytes", limit)
        exported = export_vectors(corpus, folder, target, terms=TERMS)
        sizes = [(folder / name).stat().st_size for name in exported.files]
        assert (len(sizes) == 30) if limit == 1 else (max(sizes) <= limit < sum(sizes))


@pytest.mark.parametrize(("target", "bits"), [("opensearch", 9), ("vespa", 8), ("pgvector", 24)])
def test_the_recall_is_that_of_a_naive_loop(
    target: str, bits: int, store, some_vectors, tmp_path: Path
) -> None:
    """The number that is printed decides whether an engine is good enough."""
    # Nearly equal weights, so that rounding reorders; random queries, so that no rounded scores are equal.
    weights = np.random.default_rng(2).uniform(1, 1.05, (300, WIDTH)).astype(np.float32)
    vectors = sparse.csr_array(weights)
    queries = some_vectors(20, seed=1)
    corpus = store(tmp_path / "corpus", vectors, [f"d{i}" for i in range(300)], block_rows=64)
    asked = Queries(queries, [f"q{i}" for i in range(20)])
    survey = export_vectors(corpus, tmp_path / "out", target, terms=TERMS, queries=asked).survey
    cut = np.zeros(vectors.shape, np.float32)
    for row, line in enumerate(vectors.toarray()):
        for column, weight in enumerate(line.tolist()):
            if weight:
                mantissa, exponent = np.frexp(weight)
                cut[row, column] = np.floor(mantissa * 2**bits) / 2**bits * 2.0**exponent
    found = wanted = 0
    for query in queries.toarray():
        exact, kept = vectors.toarray() @ query, cut @ query
        if not exact.any():
            continue
        tenth = np.sort(exact)[-10]
        found += sum(exact[place] >= tenth * (1 - 1e-5) for place in np.argsort(-kept)[:10])
        wanted += 10
    assert survey.recall == pytest.approx(found / wanted)
    assert survey.recall < 1 or bits == 24
    assert survey.searched_with == "20 queries"


def test_the_smallest_scale_that_keeps_the_ranking_is_taken(store, some_vectors, tmp_path: Path) -> None:
    """Smaller whole numbers make a smaller index; too small ones lose documents."""
    vectors = some_vectors(200)
    ids = [f"d{i}" for i in range(200)]
    easy = vectors.copy()
    easy.data = np.rint(easy.data * 4).astype(np.float32) + 1  # whole already
    assert (
        export_vectors(store(tmp_path / "a", easy, ids), tmp_path / "x", "ciff", terms=TERMS).survey.scale
        == 20
    )
    hard = vectors.copy()
    hard.data = (1 + hard.data / 1000).astype(np.float32)  # differ by less than 1/333
    survey = export_vectors(store(tmp_path / "b", hard, ids), tmp_path / "y", "anserini", terms=TERMS).survey
    assert survey.scale == 500
    assert survey.recall < 0.995
    assert survey.searched_with == "4 documents as queries"  # those of the first block


def test_vectors_of_a_model_searched_by_cosine_have_unit_length(store, some_vectors, tmp_path: Path) -> None:
    """The engines compute dot products: without the scaling they would rank otherwise than the model."""
    vectors = some_vectors(6)
    corpus = store(tmp_path / "corpus", vectors, IDS[:6], "cosine")
    queries = Queries(some_vectors(2, seed=1), ["a", "b"])
    exported = export_vectors(corpus, tmp_path / "out", "pgvector", queries=queries)
    lengths = [
        sum(w * w for w in weights.values())
        for _, weights in read_documents("pgvector", tmp_path / "out", exported.files)
    ]
    np.testing.assert_allclose(lengths, [1, 1, 1, 0, 1, 1], atol=1e-6)
    for _, weights in read_documents("pgvector", tmp_path / "out", ["queries.copy"]):
        assert sum(w * w for w in weights.values()) == pytest.approx(1)
    assert "unit length" in (tmp_path / "out" / "README.md").read_text()
    assert "1 documents have no term" in (tmp_path / "out" / "README.md").read_text()


def test_memory_does_not_grow_with_the_corpus(
    store, some_vectors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A corpus larger than memory is what the stream is for."""
    monkeypatch.setattr(VECTOR_TARGETS["pgvector"], "shard_bytes", 8000)
    peaks = []
    for name, rows in (("small", 256), ("large", 1280)):
        corpus = store(tmp_path / name, some_vectors(rows), [f"d{i}" for i in range(rows)], block_rows=64)
        tracemalloc.start()
        export_vectors(corpus, tmp_path / f"{name}-out", "pgvector")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # Five times the documents; what grows is the list of the names of files.
    assert peaks[1] < 1.5 * peaks[0]


def test_bad_input_is_refused_before_any_work(store, some_vectors, tmp_path: Path) -> None:
    """Each would otherwise be found after hours, or never."""
    corpus = store(tmp_path / "corpus", some_vectors(6), IDS[:6])
    dense = store(tmp_path / "dense", np.ones((6, 4), np.float32), IDS[:6])
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=r"only sparse vectors are exported; .*dense holds dense ones"):
        check_vector_export(dense, out, "pgvector")
    with pytest.raises(ValueError, match=r"must be one of anserini, ciff, .*; received 'solr'"):
        check_vector_export(corpus, out, "solr")
    with pytest.raises(ValueError, match="OpenSearch needs the names of 40 terms; received none"):
        export_vectors(corpus, out, "opensearch")
    with pytest.raises(ValueError, match="needs the names of 40 terms; received 3"):
        export_vectors(corpus, out, "vespa", terms=["a", "b", "c"])
    with pytest.raises(ValueError, match=r"two terms must differ; received '\[2\]'"):
        export_vectors(corpus, out, "opensearch", terms=["a", "[2]", ".", *TERMS[3:]])
    with pytest.raises(ValueError, match="queries have 7 columns; the index has 40"):
        export_vectors(corpus, out, "pgvector", queries=Queries(sparse.csr_array(np.ones((1, 7))), ["q"]))
    empty = store(tmp_path / "empty", sparse.csr_array((6, 4), dtype=np.float32), IDS[:6])
    with pytest.raises(ValueError, match="every vector is empty"):
        export_vectors(empty, out, "pgvector")
    queries = Queries(sparse.csr_array((1, WIDTH), dtype=np.float32), ["q"])
    with pytest.raises(ValueError, match="every one of the 1 queries is empty"):
        export_vectors(corpus, out, "pgvector", queries=queries)
    assert not out.exists()
    with pytest.raises(FileExistsError, match="corpus exists and is not an empty directory"):
        export_vectors(corpus, tmp_path / "corpus", "pgvector")


def test_the_example_is_a_text_with_terms(store, tmp_path: Path) -> None:
    """A query without a term finds nothing, and the first block may hold no other."""
    vectors = sparse.csr_array(np.float32([[0, 0]] * 5 + [[0, 2]]))
    corpus = store(tmp_path / "corpus", vectors, IDS[:6], block_rows=2)
    export_vectors(corpus, tmp_path / "out", "pgvector")
    assert "vector <#> '{2:1.0}/2'" in (tmp_path / "out" / "example-query.sql").read_text()


def test_the_example_is_no_larger_than_a_query(store, tmp_path: Path) -> None:
    """A document gives it: PISA got each of its terms as often as its weight, megabytes of them."""
    vectors = sparse.csr_array(np.arange(1, 41, dtype=np.float32)[None] * 1e4)
    corpus = store(tmp_path / "corpus", vectors, IDS[:1])
    export_vectors(corpus, tmp_path / "out", "ciff", terms=[f"t{place}" for place in range(40)])
    words = (tmp_path / "out" / "example-query.txt").read_text().removeprefix("example:").split()
    assert set(words) == {f"t{place}" for place in range(30, 40)}
    assert len(words) < 10 * 100


def test_a_document_whose_weights_all_round_to_0_is_told(store, tmp_path: Path) -> None:
    """No search finds it; only vectors without any weight were counted."""
    vectors = sparse.csr_array(np.float32([[1, 2], [2, 1], [0.0001, 0.0002]]))
    corpus = store(tmp_path / "corpus", vectors, IDS[:3])
    assert export_vectors(corpus, tmp_path / "out", "anserini", terms=["x", "y"]).survey.empty == 1
    assert (
        "1 documents have no term, so no search finds them." in (tmp_path / "out" / "README.md").read_text()
    )


def test_terms_are_named_by_the_model_of_the_corpus(tiny_splade, tmp_path: Path) -> None:
    """Names of another model's terms would fit no query."""
    encode_corpus(tiny_splade, {"a": "sort the list", "b": "open file"}, tmp_path / "corpus", name="tiny")
    corpus = EncodedCorpus(tmp_path / "corpus")
    names = term_names(tiny_splade, corpus)
    vectors, _ = corpus.merged()
    assert len(names) == vectors.shape[1]
    assert names == tiny_splade.tokenizer.convert_ids_to_tokens(range(len(names)))
    tiny_splade.max_seq_length = 7
    with pytest.raises(
        ValueError, match=r"must be the one that encoded the corpus, tiny at .*\(at 7 tokens\)"
    ):
        term_names(tiny_splade, corpus)
