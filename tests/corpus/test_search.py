"""Searching by text: the hits of the index, with the terms whose contributions make the score."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lexforge.corpus.encoded_corpus import EncodedCorpus, encode_corpus
from lexforge.corpus.search import Searcher
from lexforge.corpus.stored_index import build_index, open_index

TEXTS = "search index|sort the list|file|vector|hash of a key|검색 서울|open|tree node|search the tree".split(
    "|"
)
CORPUS = {f"d{number}": text for number, text in enumerate(TEXTS)}


def stored(model, tmp_path: Path, kind: str):
    encode_corpus(model, CORPUS, tmp_path / "blocks", name="tiny")
    build_index(EncodedCorpus(tmp_path / "blocks"), tmp_path / "index", kind)
    return open_index(tmp_path / "index")


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_terms_sum_to_the_score(similarity: str, tiny_splade, tmp_path: Path) -> None:
    """What a term adds is its weight in the query times its weight in the document."""
    tiny_splade.similarity_fn_name = similarity
    index, source = stored(tiny_splade, tmp_path, "inverted")
    (first, second) = Searcher(index, tiny_splade, CORPUS, source).search(["search tree", "file"], 4)
    assert len(first) == len(second) == 4
    query = dict(tiny_splade.decode(tiny_splade.encode_query("search tree")))
    for hit in first:
        document = dict(tiny_splade.decode(tiny_splade.encode_document(hit.text)))
        products = {term: query[term] * document[term] for term in query.keys() & document.keys()}
        norms = [float(np.linalg.norm(list(side.values()))) for side in (query, document)]
        scale = norms[0] * norms[1] if similarity == "cosine" else 1
        # padding changes the encoder's sums
        assert dict(hit.terms) == pytest.approx(
            {t: v / scale for t, v in products.items()}, rel=1e-4, abs=1e-6
        )
        assert [value for _, value in hit.terms] == sorted((value for _, value in hit.terms), reverse=True)
        assert sum(value for _, value in hit.terms) == pytest.approx(hit.score, rel=1e-4)
        assert hit.text == CORPUS[hit.id]
    assert [hit.score for hit in first] == sorted((hit.score for hit in first), reverse=True)


def test_a_dense_model_has_no_terms(tiny_dense, tmp_path: Path) -> None:
    """The same command serves dense models."""
    index, source = stored(tiny_dense, tmp_path, "faiss-flat")
    ((hit, *_),) = Searcher(index, tiny_dense, CORPUS, source).search(["hash of a key"], 2)
    assert (hit.id, hit.text, hit.terms) == ("d4", "hash of a key", [])
    assert hit.score == pytest.approx(1, abs=1e-5)  # the cosine of a text with itself


def test_bad_input_is_refused(tiny_splade, tmp_path: Path) -> None:
    """A blank query, k = 0, another corpus or model: named, never answered."""
    index, source = stored(tiny_splade, tmp_path, "inverted")
    searcher = Searcher(index, tiny_splade, CORPUS, source)
    with pytest.raises(ValueError, match=r"must not be blank; received .* as query 2"):
        searcher.search(["file", " \t"], 3)
    with pytest.raises(ValueError, match="k must be at least 1; received 0"):
        searcher.search(["file"], 0)
    with pytest.raises(ValueError, match="received another of 9 documents"):
        Searcher(index, tiny_splade, {**CORPUS, "d0": "other"}, source)
    tiny_splade.max_seq_length = 4
    with pytest.raises(ValueError, match=r"tiny at 32 tokens; received a model \(at 4 tokens\)"):
        Searcher(index, tiny_splade, CORPUS, source)
