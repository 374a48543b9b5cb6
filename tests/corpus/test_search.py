"""Searching by text: the hits of the index, with the terms whose contributions make the score."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from lexforge.common.types import Passage
from lexforge.corpus.encoded_corpus import EncodedCorpus, encode_corpus
from lexforge.corpus.search import Searcher, open_searcher
from lexforge.corpus.stored_index import build_index, index_passages, open_index
from lexforge.retrieval import BM25Index

TEXTS = "search index|sort the list|file|vector|hash of a key|검색 서울|open|tree node|search the tree".split(
    "|"
)
CORPUS = {f"d{number}": text for number, text in enumerate(TEXTS)}
PASSAGES = {key: Passage("", text, key) for key, text in CORPUS.items()}


def stored(model, tmp_path: Path, index_name: str):
    encode_corpus(model, CORPUS, tmp_path / "blocks", name="tiny")
    build_index(EncodedCorpus(tmp_path / "blocks"), tmp_path / "index", index_name, passages=PASSAGES)
    return open_index(tmp_path / "index")


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_terms_sum_to_the_score(similarity: str, tiny_splade, tmp_path: Path) -> None:
    """What a term adds is its weight in the query times its weight in the document."""
    tiny_splade.similarity_fn_name = similarity
    index, source, passages = stored(tiny_splade, tmp_path, "inverted")
    answers = Searcher(index, tiny_splade, source, passages).answer(["search tree", "file"], 4)
    first, second = (answer.hits for answer in answers)
    assert len(first) == len(second) == 4
    query = dict(tiny_splade.decode(tiny_splade.encode_query("search tree")))
    for hit in first:
        document = dict(tiny_splade.decode(tiny_splade.encode_document(CORPUS[hit.id])))
        products = {term: query[term] * document[term] for term in query.keys() & document.keys()}
        norms = [float(np.linalg.norm(list(terms.values()))) for terms in (query, document)]
        scale = norms[0] * norms[1] if similarity == "cosine" else 1
        # padding changes the encoder's sums
        assert {term.term: term.score for term in hit.terms} == pytest.approx(
            {t: v / scale for t, v in products.items()}, rel=1e-4, abs=1e-6
        )
        values = [term.score for term in hit.terms]
        assert values == sorted(values, reverse=True)
        assert sum(values) == pytest.approx(hit.score, rel=1e-4)
        assert hit.passage == PASSAGES[hit.id]
        own = set(tiny_splade.tokenizer.tokenize("search tree"))
        assert {term.term for term in hit.terms if term.own} == own & set(products)
        assert own & set(products) != set(products)  # some of the terms are expansion
    assert [hit.score for hit in first] == sorted((hit.score for hit in first), reverse=True)


def test_a_dense_model_has_no_terms(tiny_dense, tmp_path: Path) -> None:
    """The same command serves dense models."""
    index, source, passages = stored(tiny_dense, tmp_path, "faiss-flat")
    [(_, [hit, *_])] = Searcher(index, tiny_dense, source, passages).answer(["hash of a key"], 2)
    assert (hit.id, hit.passage, hit.terms) == ("d4", PASSAGES["d4"], [])
    assert hit.score == pytest.approx(1, abs=1e-5)  # the cosine of a text with itself


def test_bad_input_is_refused(tiny_splade, tmp_path: Path) -> None:
    """A blank query, k = 0, another corpus or model: named, never answered."""
    index, source, _ = stored(tiny_splade, tmp_path, "inverted")
    searcher = Searcher(index, tiny_splade, source)
    with pytest.raises(TypeError, match="expected a list of texts; received the single text 'sort a list'"):
        searcher.answer("sort a list", 3)
    with pytest.raises(ValueError, match=r"must not be blank; received .* as query 2"):
        searcher.answer(["file", " \t"], 3)
    assert searcher.answer(["file"], 1)[0].hits[0].passage is None  # without texts there are none to show
    other = {**PASSAGES, "d0": Passage("", "other", "d0")}
    with pytest.raises(ValueError, match="must be those that were encoded, 9 of them; received others, 9"):
        build_index(EncodedCorpus(tmp_path / "blocks"), tmp_path / "second", "inverted", passages=other)
    tiny_splade.max_seq_length = 4
    with pytest.raises(ValueError, match=r"tiny at 32 tokens; received a model \(at 4 tokens\)"):
        Searcher(index, tiny_splade, source)


def test_a_searcher_opens_with_its_model(tiny_splade, tmp_path: Path) -> None:
    """Model and index are found by the name in the index, and beside it when both were moved together."""
    made = tmp_path / "made"
    tiny_splade.save_pretrained(str(made / "model"))
    index_passages(tiny_splade, PASSAGES, made / "index", name=str(made / "model"))
    before = open_searcher(made / "index").answer(["search tree"], 3)
    made.rename(tmp_path / "moved")
    searcher = open_searcher(tmp_path / "moved" / "index")
    assert searcher.answer(["search tree"], 3) == before
    assert len(searcher) == 9
    query = dict(tiny_splade.decode(tiny_splade.encode_query("search tree")))
    found = searcher.answer(["search tree"], 3)[0].terms
    assert {term.term: term.score for term in found} == pytest.approx(query, rel=1e-4)
    assert {term.term for term in found if term.own} == {"search", "tree"}
    assert not (tmp_path / "moved" / "index.unfinished").exists()
    with torch.no_grad():
        next(tiny_splade.parameters()).mul_(2)
    tiny_splade.save_pretrained(str(made / "model"))  # the next version, where the first one was
    shutil.rmtree(tmp_path / "moved" / "model")
    with pytest.raises(ValueError, match=r"with other weights or settings\. Name the folder"):
        open_searcher(tmp_path / "moved" / "index")
    shutil.rmtree(made)
    with pytest.raises(FileNotFoundError, match="there is no model at") as missing:
        open_searcher(tmp_path / "moved" / "index")
    assert "--model (model= in Python) names where the model of" in missing.value.__notes__[0]
    with pytest.raises(FileNotFoundError, match="there is no model at") as mistyped:
        open_searcher(tmp_path / "moved" / "index", "./no-such-model")
    assert not hasattr(mistyped.value, "__notes__")


def test_a_name_of_the_hub_is_no_folder_beside_the_index(tiny_splade, tmp_path: Path) -> None:
    """A fine-tune with the name of its base, beside an index of the base, is not the model of the index."""
    tiny_splade.save_pretrained(str(tmp_path / "base"))
    index_passages(tiny_splade, PASSAGES, tmp_path / "index", name="organisation/base")
    with pytest.raises(OSError, match="organisation/base"):
        open_searcher(tmp_path / "index")


def test_a_store_inside_its_index_is_refused_before_anything_is_encoded(tiny_splade, tmp_path: Path) -> None:
    """All documents were encoded first, and then the folder was not new."""
    options = {"uri": str(tmp_path / "index" / "s.qdrant"), "collection": "c"}
    for error, message in (
        (FileNotFoundError, "does not exist"),
        (FileExistsError, "not an empty directory"),
    ):
        with pytest.raises(error, match=message):
            index_passages(
                tiny_splade, PASSAGES, tmp_path / "index", name="tiny", index_name="qdrant", **options
            )
        assert not (tmp_path / "index.unfinished").exists()
        (tmp_path / "index").mkdir(exist_ok=True)


def test_ranks_of_bm25_are_fused(tiny_splade, tmp_path: Path) -> None:
    """Each ranking gives 1 / (60 + rank); a document that both rank high comes first."""
    tiny_splade.save_pretrained(str(tmp_path / "model"))
    index_passages(tiny_splade, PASSAGES, tmp_path / "index", name=str(tmp_path / "model"))
    [(_, plain)] = open_searcher(tmp_path / "index").answer(["list of vector"], 9)
    [(_, fused)] = open_searcher(tmp_path / "index", hybrid=True).answer(["list of vector"], 9)
    bm25 = BM25Index.build(list(CORPUS.values()), list(CORPUS)).search(["list of vector"], 9).ids[0]
    expected: dict[str, float] = {}
    for ranking in ([hit.id for hit in plain], bm25):
        for rank, key in enumerate(ranking):
            expected[key] = expected.get(key, 0) + 1 / (61 + rank)
    assert {hit.id: hit.score for hit in fused} == pytest.approx(expected, rel=1e-6)
    assert [hit.score for hit in fused] == sorted((hit.score for hit in fused), reverse=True)
    terms = {hit.id: hit.terms for hit in fused}
    assert all(terms[hit.id] == hit.terms for hit in plain)
