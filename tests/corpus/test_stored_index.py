"""Indexes of encoded corpora: each answers as the vectors do, and interrupted ones are refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from lexforge.corpus import EncodedCorpus, build_index, encode, encode_corpus, open_index, stored_index
from lexforge.corpus.stored_index import FORMAT
from lexforge.models.fingerprint import fingerprint
from lexforge.retrieval import MilvusIndex
from lexforge.retrieval.servers import server
from lexforge.storage.manifest import pack_manifest

TEXTS = "search index|sort the list|file|vector|hash of a key|검색 서울|open|tree node|search the tree".split(
    "|"
)
CORPUS = {f"d{number}": text for number, text in enumerate(TEXTS)}


@pytest.fixture
def sparse_corpus(tiny_splade, tmp_path: Path) -> EncodedCorpus:
    encode_corpus(tiny_splade, CORPUS, tmp_path / "sparse", name="tiny", block_rows=2)
    return EncodedCorpus(tmp_path / "sparse")


@pytest.fixture
def dense_corpus(tiny_dense, tmp_path: Path) -> EncodedCorpus:
    encode_corpus(tiny_dense, CORPUS, tmp_path / "dense", name="tiny", block_rows=4)
    return EncodedCorpus(tmp_path / "dense")


@pytest.fixture(autouse=True)
def _several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BATCH_ROWS", 2)


def milvus_options(index_name: str, tmp_path: Path) -> dict:
    if index_name != "milvus":
        return {}
    pytest.importorskip("pymilvus", reason="the extra `milvus` is not installed")
    pytest.importorskip("milvus_lite", reason="the extra `milvus` is not installed")
    return {"uri": str(tmp_path / "vectors.db")}


@pytest.mark.parametrize("index_name", ["inverted", "milvus"])
@pytest.mark.parametrize("rows", [1, 5, 100])
def test_a_sparse_index_finds_what_its_vectors_say(
    index_name, rows, sparse_corpus, tiny_splade, tmp_path, monkeypatch
) -> None:
    """Built from blocks, saved and opened again, at any block size."""
    options = milvus_options(index_name, tmp_path)
    monkeypatch.setattr(stored_index, "ROWS", rows)
    build_index(sparse_corpus, tmp_path / "out", index_name, **options)
    index, source, passages = open_index(tmp_path / "out")
    assert passages is None
    queries = encode(tiny_splade, TEXTS, "query")
    products = (queries @ sparse_corpus.merged()[0].T).toarray()
    for row, (ids, scores) in enumerate(zip(*vars(index.search(queries, 3)).values(), strict=True)):
        best = np.argsort(-products[row], kind="stable")[:3]
        assert ids == [f"d{place}" for place in best]
        np.testing.assert_allclose(scores, products[row][best], rtol=1e-5)  # summed in another order
    assert len(index) == 9
    assert (source.index_name, source.model, source.max_seq_length) == (index_name, "tiny", 32)
    assert source.fingerprint == fingerprint(tiny_splade)


@pytest.mark.parametrize("index_name", ["faiss-flat", "faiss-hnsw", "milvus"])
def test_a_dense_index_finds_what_its_vectors_say(
    index_name: str, dense_corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The similarity is the model's: cosine here, whatever the default of the index."""
    monkeypatch.setattr(stored_index, "ROWS", 4)
    build_index(dense_corpus, tmp_path / "out", index_name, **milvus_options(index_name, tmp_path))
    index, _, _ = open_index(tmp_path / "out")
    vectors, ids = dense_corpus.merged()
    assert index.similarity == "cosine"
    assert [row[0] for row in index.search(vectors * 3, 1).ids] == ids


def test_a_killed_milvus_build_is_refused_until_it_is_dropped(
    sparse_corpus, tmp_path: Path, monkeypatch
) -> None:
    """Half a corpus must not be searched, and no other corpus may be added to it."""
    options = milvus_options("milvus", tmp_path)
    sent, real = [], MilvusIndex.add
    monkeypatch.setattr(stored_index, "ROWS", 3)

    def add(index, vectors, ids) -> None:
        if len(sent) == 2:
            raise KeyboardInterrupt
        sent.append(ids)
        real(index, vectors, ids)

    with monkeypatch.context() as killed:
        killed.setattr(MilvusIndex, "add", add)
        with pytest.raises(KeyboardInterrupt):
            build_index(sparse_corpus, tmp_path / "out", "milvus", **options)
    with pytest.raises(FileNotFoundError, match=r"no finished index: source\.json is missing"):
        open_index(tmp_path / "out")
    with pytest.raises(ValueError, match="holds 4 documents, perhaps of an interrupted build: drop it"):
        build_index(sparse_corpus, tmp_path / "out", "milvus", **options)
    again = {**options, "collection": "again"}
    assert len(build_index(sparse_corpus, tmp_path / "out", "milvus", **again)) == len(CORPUS)


def test_what_is_there_is_not_overwritten_and_damage_is_refused(sparse_corpus, tmp_path: Path) -> None:
    """A folder with an index in it stays; one whose description is not ours is not opened."""
    out = tmp_path / "out"
    build_index(sparse_corpus, out, "inverted")
    with pytest.raises(FileExistsError, match="is not an empty directory"):
        build_index(sparse_corpus, out, "inverted")
    text = (out / "source.json").read_text()
    fields = json.loads(text)["fields"]
    changed = [pack_manifest(FORMAT, {**fields, **new}) for new in ({"index_name": "bm42"}, {"more": 1})]
    for name in ("state", "generation"):
        changed.append(pack_manifest(FORMAT, {key: value for key, value in fields.items() if key != name}))
    for other in (*changed, text.replace('"tiny"', '"tony"'), json.dumps(fields)):
        (out / "source.json").write_text(other)
        with pytest.raises(ValueError, match="does not describe an index of this version of lexforge"):
            open_index(out)
    (out / "source.json").write_text(text)
    shutil.rmtree(out / "generation-1")
    with pytest.raises(FileNotFoundError):
        open_index(out)


def test_the_folder_of_an_adaptation_names_the_index_in_it(sparse_corpus, tmp_path: Path) -> None:
    """`lexforge adapt --output DIR` leaves DIR/model and DIR/index, and DIR is what a user remembers."""
    build_index(sparse_corpus, tmp_path / "index", "inverted")
    with pytest.raises(
        FileNotFoundError, match=re.escape(f"source.json is missing; {tmp_path / 'index'} is one")
    ):
        open_index(tmp_path)
