"""Teachers: a sentence-transformers model, and latent semantic analysis of the corpus."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from transformers import BertConfig, BertForSequenceClassification, BertModel

from lexforge.data import DataError
from lexforge.teachers import (
    BM25Teacher,
    SentenceTransformerTeacher,
    TeacherCache,
    candidate_scorer,
    load,
    load_teacher,
    lsa,
    teach_rows,
)
from lexforge.teachers.lsa import LsaTeacher

TOPICS = {
    "sort": "sort order list array quick merge bubble ascending",
    "tree": "tree node root leaf branch depth parent child",
    "file": "file path open read write close folder stream",
}


def corpus() -> list[str]:
    """Texts of three topics: a term occurs with half of its topic's terms, in turn."""
    texts = []
    for words in TOPICS.values():
        terms = words.split()
        texts += [" ".join(terms[(start + step) % 8] for step in range(4)) for start in range(8)]
    return texts


@pytest.fixture
def fit_lsa(monkeypatch: pytest.MonkeyPatch) -> Callable[..., LsaTeacher]:
    """Fits a teacher of fewer dimensions than its corpus allows."""

    def fit(texts: list[str], dimensions: int, analyzer: Literal["word", "char_wb"] = "word") -> LsaTeacher:
        monkeypatch.setattr(lsa, "MOST_DIMENSIONS", dimensions)
        teacher = LsaTeacher.fit(texts, analyzer)
        assert teacher.encode([""]).shape == (1, dimensions)
        return teacher

    return fit


def test_lsa_finds_the_topic_of_a_text_without_a_shared_word(fit_lsa: Callable[..., LsaTeacher]) -> None:
    """That is what latent semantic analysis is for: "sort" and "bubble" never occur together here."""
    teacher = fit_lsa(corpus(), dimensions=3)
    sort, merge, leaf = teacher.encode(["sort order", "bubble merge", "leaf depth"])
    assert sort @ merge > 0.95
    assert abs(sort @ leaf) < 0.05


def test_lsa_equals_a_dense_decomposition(fit_lsa: Callable[..., LsaTeacher]) -> None:
    """The oracle is numpy's full singular value decomposition of weights computed term by term."""
    texts = [*corpus(), "sort sort sort sort tree"]  # a repeat counts by its logarithm
    terms = sorted({term for text in texts for term in text.split()})
    weights = np.zeros((len(texts), len(terms)))
    for row, text in enumerate(texts):
        for column, term in enumerate(terms):
            count = text.split().count(term)
            holding = sum(term in other.split() for other in texts)
            if count:
                weights[row, column] = (1 + np.log(count)) * (np.log((1 + len(texts)) / (1 + holding)) + 1)
        weights[row] /= np.linalg.norm(weights[row])
    left, values, _ = np.linalg.svd(weights, full_matrices=False)
    embeddings = left[:, :3] * values[:3]
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    ours = fit_lsa(texts, dimensions=3).encode(texts)
    assert ours.dtype == np.float32
    # Directions are free up to sign, similarities are not; 1e-4 is float32 with a randomised decomposition.
    np.testing.assert_allclose(ours @ ours.T, embeddings @ embeddings.T, atol=1e-4)


def test_lsa_is_deterministic_and_its_name_tells_teachers_apart(fit_lsa: Callable[..., LsaTeacher]) -> None:
    """The name guards a cache: equal names must mean equal vectors, other settings other names."""
    first, second = fit_lsa(corpus(), dimensions=4), fit_lsa(corpus(), dimensions=4)
    assert first.name == second.name
    np.testing.assert_array_equal(first.encode(corpus()), second.encode(corpus()))
    others = [
        fit_lsa(corpus(), dimensions=5),
        fit_lsa(corpus()[1:], dimensions=4),
        fit_lsa(corpus(), dimensions=4, analyzer="char_wb"),
    ]
    assert len({first.name, *(other.name for other in others)}) == 4


def test_lsa_reads_whole_words_in_each_form() -> None:
    """Words of Hindi fell into letters, and an accent of its own cut a word in two."""
    teacher = LsaTeacher.fit(["cafe\u0301 menu", "हिन्दी भाषा", "river stone", "river menu"])
    known = teacher.encode(["caf\u00e9", "हिन्दी", "cafe", "ह"]).any(axis=1)
    assert known.tolist() == [True, True, False, False]


def test_lsa_embeds_unknown_words_as_nothing_and_all_else_at_length_one(
    fit_lsa: Callable[..., LsaTeacher],
) -> None:
    """A zero row is defined and finite; anything else would be noise."""
    embeddings = fit_lsa(corpus(), dimensions=4).encode(["sort list", "", "서울"])
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), [1, 0, 0], atol=1e-6)  # float32


def test_lsa_by_characters_joins_forms_of_a_word(fit_lsa: Callable[..., LsaTeacher]) -> None:
    """Korean particles hang on the word: by words these two share nothing."""
    texts = [
        f"{place}{particle} 검색"
        for place in ("서울", "부산", "한국", "도시")
        for particle in ("은", "이", "을")
    ]
    teacher = fit_lsa(texts, dimensions=6, analyzer="char_wb")
    seoul, also_seoul, busan = teacher.encode(["서울은", "서울이", "부산을"])
    assert seoul @ also_seoul > seoul @ busan + 0.2


def test_lsa_has_as_many_dimensions_as_the_words_allow() -> None:
    """A catalogue of many short texts has fewer words than texts."""
    texts = [f"{colour} {animal}" for colour in ("red", "blue", "green") for animal in ("cat", "dog", "fox")]
    assert load_teacher("lsa", texts).encode(texts).shape == (9, 5)
    assert load_teacher("lsa-char", texts).name != load_teacher("lsa", texts).name
    for least in (["sort list", "sort node"], ["sort", "list", "sort list"] * 3):
        assert load_teacher("lsa", least).encode(["sort"]).shape == (1, 1)


@pytest.mark.parametrize(
    ("texts", "received"), [([], "0 and 0"), (["sort list"], "1 and 2"), (["sort"] * 9, "9 and 1")]
)
def test_lsa_refuses_what_it_cannot_fit(texts: list[str], received: str) -> None:
    """scikit-learn would warn, or name a setting that no user has."""
    with pytest.raises(ValueError, match=f"at least 2 texts and 2 different terms; received {received}"):
        load_teacher("lsa", texts)


@pytest.fixture
def dense_folder(tiny_dense, tmp_path: Path) -> Path:
    tiny_dense.save(str(tmp_path / "dense"))
    return tmp_path / "dense"


def test_a_sentence_transformer_teaches_normalised_vectors(dense_folder: Path, tiny_dense) -> None:
    """The vectors are the model's own, at length 1."""
    teacher = SentenceTransformerTeacher(str(dense_folder))
    texts = ["sort a list", "open the file"]
    embeddings = teacher.encode(texts, "document")
    plain = tiny_dense.encode(texts)
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(
        embeddings, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6
    )  # float32


def test_a_model_that_was_trained_by_dot_products_teaches_by_them(tiny_dense, tmp_path: Path) -> None:
    """TAS-B and others: by cosine they rank other documents first than those that they were trained to."""
    tiny_dense.save(str(tmp_path / "cosine"))
    tiny_dense.similarity_fn_name = "dot"
    tiny_dense.save(str(tmp_path / "dot"))
    by_cosine, by_dot = (SentenceTransformerTeacher(str(tmp_path / kind)) for kind in ("cosine", "dot"))
    assert (by_cosine.similarity, by_dot.similarity) == ("cosine", "dot")
    texts = ["sort a list", "open the file", "train"]
    np.testing.assert_allclose(by_dot.encode(texts, "document"), tiny_dense.encode(texts), atol=1e-6)
    queries, documents = {"q": "sort"}, dict(zip("abc", texts, strict=True))
    scores = candidate_scorer(by_dot, queries, documents, tmp_path / "cache")({"q": list(documents)})
    expected = tiny_dense.similarity(tiny_dense.encode(["sort"]), tiny_dense.encode(texts))[0]
    np.testing.assert_allclose(list(scores["q"].values()), expected, rtol=2e-3)  # half precision
    rows = [{"anchor": "sort", "positive": text} for text in texts]
    assert teach_rows(by_dot, rows, tmp_path / "cache")[1].similarity == "dot"
    with pytest.raises(DataError, match=r"-dot\b"):  # the vectors of one are not those of the other
        TeacherCache.build(by_cosine, [], texts, tmp_path / "cache")


def test_the_name_of_a_sentence_transformer_follows_its_weights(
    dense_folder: Path, tiny_dense, tmp_path: Path
) -> None:
    """A model trained further in the same folder is another teacher; a copy elsewhere is the same one."""
    name = SentenceTransformerTeacher(str(dense_folder)).name
    tiny_dense.save(str(tmp_path / "copy" / "dense"))
    assert SentenceTransformerTeacher(str(tmp_path / "copy" / "dense")).name == name
    tiny_dense[0].auto_model.embeddings.word_embeddings.weight.data += 0.01
    tiny_dense.save(str(dense_folder))
    assert SentenceTransformerTeacher(str(dense_folder)).name != name


@pytest.mark.parametrize("name", ["nobody/has-this-model", "./no-such-folder", "/no/such/folder"])
def test_a_missing_teacher_is_one_clear_error(name: str) -> None:
    """Offline is the usual state of a training machine; the message says what to do."""
    with pytest.raises(DataError, match=f"the teacher '{name}' cannot be loaded; pass a folder"):
        SentenceTransformerTeacher(name)


def test_queries_and_documents_get_their_prompts(tiny_dense, tmp_path: Path) -> None:
    """The oracle is the plain encoding of the text with its prompt before it."""
    tiny_dense.prompts = {"query": "search ", "passage": "document "}
    tiny_dense.save(str(tmp_path))
    teacher = SentenceTransformerTeacher(str(tmp_path))
    by_hand = {
        kind: tiny_dense.encode([f"{prompt} sort a list"], normalize_embeddings=True, prompt="")
        for kind, prompt in {"query": "search", "document": "document"}.items()
    }
    for kind, expected in by_hand.items():
        np.testing.assert_allclose(teacher.encode(["sort a list"], kind), expected, atol=1e-6)  # float32
    assert np.abs(by_hand["query"] - by_hand["document"]).max() > 1e-3


def test_a_folder_is_used_as_what_it_is_or_refused(
    tiny_splade, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """The mean over the tokens of a cross-encoder or a bare transformer is noise that looks like vectors."""
    tiny_splade.save_pretrained(str(tmp_path / "sparse"))
    config = BertConfig.from_pretrained(tiny_checkpoint, num_labels=1)
    BertForSequenceClassification(config).save_pretrained(tmp_path / "cross")
    BertModel(config).save_pretrained(tmp_path / "bare")
    for folder, message in {
        tmp_path / "sparse": "is a sparse model, and dense embeddings are needed here; `load_teacher`",
        tiny_checkpoint: "is a sparse model",
        tmp_path / "cross": "is a cross-encoder model",
        tmp_path / "bare": "is a bare transformer",
    }.items():
        with pytest.raises(DataError, match=message):
            SentenceTransformerTeacher(str(folder))


def test_a_fitted_teacher_takes_a_sample_of_a_large_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix of a million texts fills the memory; an even sample has the words that matter."""
    texts = [f"word{number % 7} term{number % 11} number{number}" for number in range(60)]
    monkeypatch.setattr(load, "LARGEST_FIT", 20)
    sample = [
        texts[place] for place in (0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 31, 34, 37, 40, 43, 46, 49, 52, 55, 59)
    ]
    assert load_teacher("lsa", texts).name == load_teacher("lsa", sample).name


def test_bm25_needs_no_cache_and_others_have_one(tmp_path: Path) -> None:
    """BM25 scores what comes; the vectors of a fitted teacher are written once."""
    rows = [
        {"anchor": "sort", "positive": "sort a list"},
        {"anchor": "search", "positive": "search an index"},
    ]
    documents = [row["positive"] for row in rows] * 3
    bm25 = load_teacher("bm25", documents)
    assert isinstance(bm25, BM25Teacher)
    assert teach_rows(bm25, rows, tmp_path / "bm25") == (rows, bm25)
    lsa = load_teacher("lsa", [f"{text} {n}" for n, text in enumerate(documents)])
    same, kept = teach_rows(lsa, rows, tmp_path)
    assert same is rows
    assert np.isfinite(kept.lookup(["sort"], "query")).all()
