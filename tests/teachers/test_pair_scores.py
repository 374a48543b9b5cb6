"""A teacher's scores of listed pairs: right for each kind of teacher, cached, and resumed after a kill."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import sentence_transformers
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel

from lexforge.data import DataError, RetrievalData, load_teacher_scores, write_teacher_scores
from lexforge.teachers import label_rows, listed_pairs, load_scorer, pair_scores, row_pairs, score_pairs
from lexforge.teachers.scorers import EncoderScorer, MultiVectorScorer

QUERIES = ["sort list", "search index", "한국 서울"]
DOCUMENTS = ["sort a list of words", "a search index", "the graph of a tree and a node", "서울 은 한국"]
PAIRS = [(query, document) for query in QUERIES for document in DOCUMENTS]


def write_classifier(checkpoint: Path, folder: Path, labels: int = 1) -> Path:
    """Save a random sequence classifier with the tokenizer of the checkpoint."""
    torch.manual_seed(1)
    config = BertConfig.from_pretrained(checkpoint, num_labels=labels)
    BertForSequenceClassification(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder)
    return folder


class CountingScorer:
    """Scores by the lengths of the texts, and remembers the blocks that it was asked for."""

    def __init__(self, name: str = "counting") -> None:
        self.name = name
        self.blocks: list[list[tuple[str, str]]] = []

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        self.blocks.append(list(pairs))
        return np.array([len(query) + len(document) / 100 for query, document in pairs])

    def length(self, pair: tuple[str, str]) -> int:
        return len(pair[1])


def test_a_cross_encoder_gives_its_logits(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The oracle is the classifier itself on one pair at a time; a sigmoid would flatten good documents."""
    folder = write_classifier(tiny_checkpoint, tmp_path / "cross")
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    CrossEncoder(str(folder), device="cpu").save_pretrained(str(tmp_path / "saved"))
    for name in (folder, tmp_path / "saved"):
        scores = score_pairs(load_scorer(str(name), batch_size=5), PAIRS, tmp_path / f"scores-{name.name}")
        for pair in PAIRS:
            with torch.no_grad():
                expected = model(**tokenizer(*pair, return_tensors="pt")).logits.item()
            assert scores[pair] == pytest.approx(expected, abs=1e-5)  # padding changes float32 sums


def test_a_sparse_encoder_gives_its_dot_products(
    tiny_checkpoint: Path, tiny_splade: SparseEncoder, tmp_path: Path
) -> None:
    """A saved SPLADE model and the bare checkpoint that it was made of agree with plain dense vectors."""
    tiny_splade.save_pretrained(str(tmp_path / "saved"))
    vectors = {
        text: tiny_splade.encode(text, convert_to_sparse_tensor=False).numpy()
        for text in (*QUERIES, *DOCUMENTS)
    }
    for name in (tmp_path / "saved", tiny_checkpoint):
        scores = score_pairs(load_scorer(str(name)), PAIRS, tmp_path / f"cache-{name.name}")
        for query, document in PAIRS:
            assert scores[query, document] == pytest.approx(
                float(vectors[query] @ vectors[document]), rel=1e-5
            )


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_a_dense_encoder_uses_its_prompts_and_its_similarity(
    similarity: str, tiny_dense: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that is query and document is encoded as both."""
    monkeypatch.setattr(pair_scores, "BLOCK_PAIRS", 4)
    tiny_dense.prompts = {"query": "search ", "document": "document "}
    tiny_dense.similarity_fn_name = similarity
    tiny_dense.save_pretrained(str(tmp_path / "dense"))
    pairs = [*PAIRS, ("sort list", "sort list")]
    scores = score_pairs(load_scorer(str(tmp_path / "dense")), pairs, tmp_path / "cache")
    for query, document in pairs:
        first = tiny_dense.encode(f"search {query}", prompt="").astype(float)
        second = tiny_dense.encode(f"document {document}", prompt="").astype(float)
        norm = np.linalg.norm(first) * np.linalg.norm(second) if similarity == "cosine" else 1.0
        assert scores[query, document] == pytest.approx(first @ second / norm, rel=1e-4)  # float32 encoder
    assert scores["sort list", "sort list"] != pytest.approx(1.0, abs=1e-4)


def test_a_model_with_several_vectors_gives_their_late_interaction(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """The oracle is MaxSim by its definition, on vectors of one text at a time."""
    model = sentence_transformers.MultiVectorEncoder(str(tiny_checkpoint), device="cpu")
    model.save_pretrained(str(tmp_path / "late"))
    scorer = load_scorer(str(tmp_path / "late"), batch_size=2, max_seq_length=16)
    scores = score_pairs(scorer, PAIRS, tmp_path / "scores")
    for query, document in PAIRS:
        left = torch.as_tensor(model.encode_query(query))  # [L, D]
        right = torch.as_tensor(model.encode_document(document))
        expected = float((left.float() @ right.float().T).max(dim=1).values.sum())
        assert scores[query, document] == pytest.approx(expected, rel=1e-3)
    assert len(set(scores.values())) == len(PAIRS)


def test_a_model_with_several_vectors_reads_its_prompt_of_passages(tiny_checkpoint: Path) -> None:
    """It scored other texts than it was trained on, as no other scorer does."""
    model = sentence_transformers.MultiVectorEncoder(str(tiny_checkpoint), device="cpu")
    model.prompts = {"query": "sort : ", "passage": "graph of : ", "document": ""}
    [score] = MultiVectorScorer(model).score([(QUERIES[0], DOCUMENTS[0])])
    queries = model.encode_query([QUERIES[0]])
    expected, without = (
        float(model.similarity_pairwise(queries, model.encode_document([DOCUMENTS[0]], prompt=prompt))[0])
        for prompt in ("graph of : ", "")
    )
    assert score == pytest.approx(expected, rel=1e-5)
    assert abs(expected - without) > 1e-3


def test_scores_by_another_similarity_are_not_taken_from_the_cache(
    tiny_dense: SentenceTransformer, tmp_path: Path
) -> None:
    """The weights are the same, and the scores are not."""
    tiny_dense.similarity_fn_name = "cosine"
    score_pairs(EncoderScorer(tiny_dense), PAIRS, tmp_path)
    tiny_dense.similarity_fn_name = "dot"
    with pytest.raises(DataError, match=r"is the cache of the teacher .*-cosine'; received .*-dot'"):
        score_pairs(EncoderScorer(tiny_dense), PAIRS, tmp_path)


def test_late_interaction_by_another_similarity_has_another_name(tiny_checkpoint: Path) -> None:
    """A sum over the tokens of the query is not their mean, and the name tells scores in the cache apart."""
    model = sentence_transformers.MultiVectorEncoder(str(tiny_checkpoint), device="cpu")
    names = set()
    for similarity in ("maxsim", "meanmaxsim"):
        model.similarity_fn_name = similarity
        names.add(MultiVectorScorer(model).name)
    assert len(names) == 2


@pytest.mark.parametrize("kind", ["cross", "dense", "late"])
def test_a_length_beyond_the_positions_of_a_teacher_is_refused(
    kind: str, tiny_checkpoint: Path, tiny_dense: SentenceTransformer, tmp_path: Path
) -> None:
    """Scoring would fail in torch at the first long text, perhaps hours later."""
    if kind == "cross":
        write_classifier(tiny_checkpoint, tmp_path)
    else:
        late = sentence_transformers.MultiVectorEncoder
        model = tiny_dense if kind == "dense" else late(str(tiny_checkpoint), device="cpu")
        model.save_pretrained(str(tmp_path))
    with pytest.raises(DataError, match="allows a max_seq_length of 3 to 64; received 65"):
        load_scorer(str(tmp_path), max_seq_length=65)
    scorer = load_scorer(str(tmp_path), max_seq_length=64)
    assert np.isfinite(scorer.score([("sort list", "list " * 200)])).all()


def test_a_teacher_that_is_none_of_these_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The mean over the tokens of any transformer would pass for a teacher."""
    BertModel(BertConfig.from_pretrained(tiny_checkpoint)).save_pretrained(tmp_path / "bare")
    for name in (tmp_path / "bare", tmp_path / "nothing"):
        with pytest.raises(DataError, match="is missing or a bare transformer"):
            load_scorer(str(name))
    three = write_classifier(tiny_checkpoint, tmp_path / "three", labels=3)
    with pytest.raises(DataError, match="one score per pair; received 3 outputs"):
        load_scorer(str(three))
    with pytest.raises(ValueError, match="batch_size must be at least 1; received 0"):
        load_scorer(str(three), batch_size=0)


def test_each_pair_is_scored_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cross-encoder scores a few pairs a second: nothing may be paid for twice."""
    scorer = CountingScorer()
    with monkeypatch.context() as patch:
        patch.setattr(pair_scores, "BLOCK_PAIRS", 3)
        scores = score_pairs(scorer, [*PAIRS[:8], *PAIRS[:3]], tmp_path)
    assert len(scorer.blocks) == 3
    asked = [pair for block in scorer.blocks for pair in block]
    assert sorted(asked) == sorted(PAIRS[:8])
    assert [len(pair[1]) for pair in asked] == sorted((len(pair[1]) for pair in asked), reverse=True)
    assert list(scores) == PAIRS[:8]
    assert scores["sort list", "a search index"] == np.float32(9.14)
    again = CountingScorer()
    more = score_pairs(again, PAIRS, tmp_path)
    assert sorted(pair for block in again.blocks for pair in block) == sorted(PAIRS[8:])
    assert {pair: more[pair] for pair in scores} == scores


def test_pairs_are_told_apart_by_where_the_query_ends(tmp_path: Path) -> None:
    """Joined texts are the same for both of these pairs."""
    scores = score_pairs(CountingScorer(), [("ab", "c"), ("a", "bc")], tmp_path)
    assert scores == {("ab", "c"): np.float32(2.01), ("a", "bc"): np.float32(1.02)}


def test_what_a_teacher_must_not_do(tmp_path: Path) -> None:
    """A score that is missing or NaN would shift or spoil all others."""

    class Wrong(CountingScorer):
        def __init__(self, scores: list[float]) -> None:
            super().__init__()
            self.scores = scores

        def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
            return np.array(self.scores)

    with pytest.raises(DataError, match=r"must return \[2\] numbers; received \(1,\)"):
        score_pairs(Wrong([1.0]), PAIRS[:2], tmp_path)
    for broken in (np.nan, np.inf, 1e39):
        with pytest.raises(DataError, match=r"not finite for \('sort list', 'a search index'\)"):
            score_pairs(Wrong([1.0, broken]), PAIRS[:2], tmp_path)
    score_pairs(CountingScorer(), PAIRS[:2], tmp_path)
    with pytest.raises(DataError, match="cache of the teacher 'counting'; received 'other'"):
        score_pairs(CountingScorer("other"), PAIRS, tmp_path)
    with pytest.raises(ValueError, match="received no pair"):
        score_pairs(CountingScorer(), [], tmp_path)


def test_rows_get_a_label_of_the_positive_and_each_negative() -> None:
    """Other columns stay, and an old label goes."""
    rows = [
        {"anchor": "a", "positive": "b", "negative_1": "c", "label": [0.0, 0.0]},
        {"anchor": "d", "positive": "c", "negative_1": "b", "label": [0.0, 0.0]},
    ]
    assert row_pairs(rows) == [("a", "b"), ("a", "c"), ("d", "c"), ("d", "b")]
    scores = {("a", "b"): 2.0, ("a", "c"): -1.0, ("d", "c"): 0.5, ("d", "b"): 0.25}
    labelled = label_rows(rows, scores)
    assert [row["label"] for row in labelled] == [[2.0, -1.0], [0.5, 0.25]]
    assert labelled[0] == rows[0] | {"label": [2.0, -1.0]}
    with pytest.raises(KeyError):
        label_rows(rows, {})


def test_listed_pairs_and_their_file(tmp_path: Path) -> None:
    """What is judged and what a run found best, each once; the file is the one that training reads."""
    data = RetrievalData(
        "toy",
        {name: f"text {name}" for name in "abcd"},
        {"q1": "one", "q2": "two"},
        {"train": {"q1": {"a": 1, "b": 0}, "q2": {"c": 1}}},
    )
    run = {"q1": {"d": 1.0, "c": 3.0, "a": 2.0}}
    pairs = listed_pairs(data, "train", run, depth=2)
    assert pairs == [("q1", "a"), ("q1", "b"), ("q1", "c"), ("q2", "c")]
    assert listed_pairs(data, "train", None, depth=1) == [("q1", "a"), ("q1", "b"), ("q2", "c")]
    for name in ("scores.tsv", "scores.tsv.gz"):
        write_teacher_scores(tmp_path / name, [(*pair, place / 3) for place, pair in enumerate(pairs)])
        scores = load_teacher_scores(tmp_path / name, data)
        assert scores == {"q1": {"a": 0.0, "b": 1 / 3, "c": 2 / 3}, "q2": {"c": 1.0}}
    with pytest.raises(DataError, match="neither tab nor line feed; received 'a\\\\tb'"):
        write_teacher_scores(tmp_path / "scores.tsv", [("q1", "a\tb", 1.0)])
    with pytest.raises(DataError, match="the score nan is not finite"):
        write_teacher_scores(tmp_path / "scores.tsv", [("q1", "a", float("nan"))])
    with pytest.raises(DataError, match="names document 'z', which toy lacks"):
        listed_pairs(data, "train", {"q1": {"z": 1.0}}, depth=1)
    with pytest.raises(ValueError, match="depth must be at least 1; received 0"):
        listed_pairs(data, "train", run, depth=0)
