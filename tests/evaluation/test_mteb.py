"""A saved model in MTEB: its retrieval tasks give the number that the evaluator of this package gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SparseEncoder

from lexforge.evaluation import RetrievalEvaluator
from lexforge.models import build_dense, build_splade, fuse_splade_head

WORDS = "sort list array search index query document vector sparse token model train loss batch file".split()


def retrieval_task(queries: dict[str, str], corpus: dict[str, str], qrels: dict) -> Any:
    """A retrieval task of MTEB that holds its data and downloads nothing."""
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    def rows(texts: dict[str, str]) -> Dataset:
        return Dataset.from_dict({"id": list(texts), "text": list(texts.values())})

    class OwnRetrieval(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name="OwnRetrieval",
            description="texts of random words",
            dataset={"path": "none", "revision": "1"},
            type="Retrieval",
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
        )

        def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
            split = {"queries": rows(queries), "corpus": rows(corpus), "relevant_docs": qrels}
            self.dataset = {"default": {"test": {**split, "top_ranked": None}}}
            self.data_loaded = True

    return OwnRetrieval()


@pytest.mark.filterwarnings("ignore")  # those of mteb are its own
@pytest.mark.parametrize("vector_type", ["sparse", "dense"])
def test_mteb_and_the_evaluator_agree(vector_type: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A leaderboard runs MTEB: a number measured here must be the one that it would print."""
    mteb = pytest.importorskip("mteb", reason="mteb is not installed")
    rng = np.random.default_rng(0)
    corpus = {f"d{place}": " ".join(rng.choice(WORDS, rng.integers(2, 9))) for place in range(60)}
    queries = {f"q{place}": " ".join(rng.choice(WORDS, 3)) for place in range(20)}
    qrels = {}
    for query, text in queries.items():  # relevant is what shares words: one document more, and one less
        shared = {document: len(set(text.split()) & set(words.split())) for document, words in corpus.items()}
        best = sorted(shared, key=lambda document: -shared[document])
        qrels[query] = {best[0]: 2, best[3]: 1}

    model: SparseEncoder | SentenceTransformer
    if vector_type == "sparse":
        build_splade(tiny_checkpoint, fused=False).save_pretrained(str(tmp_path))
        model = fuse_splade_head(SparseEncoder(str(tmp_path)))
    else:
        build_dense(tiny_checkpoint).save_pretrained(str(tmp_path))
        model = SentenceTransformer(str(tmp_path))
    ours = RetrievalEvaluator(queries, corpus, qrels).evaluate(model).metrics["nDCG@10"]
    task = retrieval_task(queries, corpus, qrels)
    results = mteb.evaluate(model, task, cache=None, show_progress_bar=False)
    assert 0.1 < ours < 0.99  # a number that a wrong order would change
    # MTEB rounds to five digits
    assert results.task_results[0].get_score() == pytest.approx(ours, abs=1e-5)
    results.to_disk(tmp_path / "mteb.json")
    kept = type(results).from_disk(tmp_path / "mteb.json")  # docs/evaluate.md: the file for the card
    assert kept.task_results[0].get_score() == results.task_results[0].get_score()
