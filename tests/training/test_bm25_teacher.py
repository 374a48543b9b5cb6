"""BM25 as a teacher gives the scores of the index, whatever the texts and wherever they come from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SparseEncoder

from lexforge.losses import NeuralSparseLoss
from lexforge.losses.distillation import distillation
from lexforge.losses.false_negatives import BatchTexts
from lexforge.retrieval import BM25Index
from lexforge.settings import PRESETS
from lexforge.training import BM25Teacher, SpladeTrainer, TrainingSettings
from lexforge.training.bm25_teacher import WIDTH

ENGLISH = ["Sort a list, sort it twice.", "Search the index of a list", "A graph!", "tree of the graph", ""]
KOREAN = ["목록을 정렬한다", "색인을 검색한다", "그래프 탐색"]


@pytest.mark.parametrize(
    ("corpus", "queries"),
    [(ENGLISH, ["sort the list list", "graph tree", "unknown"]), (KOREAN, ["정렬", "색인 검색"])],
    ids=["words", "bigrams"],
)
def test_products_are_the_scores_of_the_index(corpus: list[str], queries: list[str]) -> None:
    """The two have one formula, and the vectors only round."""
    teacher = BM25Teacher.fit(corpus)
    scores = teacher.lookup(queries, "query").astype(np.float32) @ teacher.lookup(
        corpus, "document"
    ).T.astype(np.float32)
    ids = [str(number) for number in range(len(corpus))]
    run = BM25Index.build(corpus, ids).search(queries, len(corpus)).to_run(queries)
    expected = [[run[query].get(name, 0.0) for name in ids] for query in queries]
    assert any(any(row) for row in expected)
    np.testing.assert_allclose(scores, expected, rtol=2e-3)


def test_a_text_outside_the_corpus_has_a_vector() -> None:
    """Rows of texts and mined negatives need no entry in a cache."""
    teacher = BM25Teacher.fit(ENGLISH)
    vectors = teacher.lookup(["a sorted list", "zebra"], "document")
    assert vectors.shape == (2, WIDTH)
    assert vectors.dtype == np.float16
    assert vectors[0].any()
    assert not vectors[1].any(), "a token that the corpus lacks tells nothing"
    assert not teacher.lookup(["zebra", ""], "query").any()


def test_a_corpus_without_a_token_and_an_unknown_kind_are_refused() -> None:
    """Means over nothing would be NaN, and a wrong kind would give wrong scores."""
    with pytest.raises(ValueError, match="received 2 texts without any"):
        BM25Teacher.fit(["", "?!"])
    with pytest.raises(ValueError, match="'query' or 'document'; received 'title'"):
        BM25Teacher.fit(ENGLISH).lookup(["sort"], "title")  # type: ignore[arg-type]


def test_it_teaches_by_dot_product(
    fresh: Callable[[], SparseEncoder], training_rows: list[dict[str, str]], tmp_path: Path
) -> None:
    """Cosines of BM25's vectors would forget the lengths that BM25 minds, without an error."""
    teacher = BM25Teacher.fit([row["positive"] for row in training_rows])
    settings = TrainingSettings(
        steps=1, batch_size=4, gradient_accumulation_steps=1, precision="fp32", logging_steps=1
    )

    def trainer(**others: Any) -> SpladeTrainer:
        model = fresh()
        model.similarity_fn_name = "dot"
        return SpladeTrainer(
            model,
            NeuralSparseLoss(model, **PRESETS["lexforge"].loss.arguments(), **others),
            args=settings.arguments(tmp_path, disable_tqdm=True),
            train_dataset=Dataset.from_list(training_rows),
            teacher=teacher,
        )

    with pytest.raises(ValueError, match="needs teacher_similarity='dot'; received 'cosine'"):
        trainer()
    taught = trainer(teacher_similarity="dot")
    batch = next(iter(taught.get_train_dataloader()))
    anchors, positives = (batch[f"{name}_teacher_embedding"].float() for name in ("anchor", "positive"))
    assert anchors.shape == positives.shape == (4, WIDTH)
    assert ((anchors @ positives.T).diagonal() > 0).all(), "a row's query and positive share words"
    features, _ = taught.collect_features(batch)
    student = [taught.model(dict(column))["sentence_embedding"] for column in features]
    parts = taught.losses[0].compute_loss(student, features, None)
    numbers = PRESETS["lexforge"].loss
    candidates = torch.cat([column["teacher_embedding"] for column in features[1:]]).float()
    expected = distillation(
        student[0] @ torch.cat(student[1:]).T,
        anchors @ candidates.T,
        numbers.distillation_temperature,
        numbers.kl_weight,
        numbers.mse_weight,
        match_scale=True,
        left_out=BatchTexts.of(features, False).left_out(),
    )
    torch.testing.assert_close(parts["distillation"], numbers.distillation_weight * expected)
    taught.train()
    assert taught.state.log_history[0]["loss/distillation"] > 0
