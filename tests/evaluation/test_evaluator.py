"""The evaluator against sentence-transformers' own, its contract with the Trainer, and what it refuses."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from lexforge.common.types import Passage
from lexforge.evaluation import (
    RetrievalEvaluator,
    compare_runs,
    evaluate_bm25,
    read_run,
    read_scores,
    score_run,
    write_run,
    write_scores,
)
from lexforge.retrieval import FaissIndex

WORDS = "sort list array search index query document vector sparse token model train loss batch file".split()


def data(documents: int = 40, queries: int = 12) -> dict:
    """Random texts; two judged documents a query, one of grade 2."""
    rng = np.random.default_rng(0)
    corpus = {f"d{i}": " ".join(rng.choice(WORDS, rng.integers(2, 9))) for i in range(documents)}
    texts = {f"q{i}": " ".join(rng.choice(WORDS, 3)) for i in range(queries)}
    qrels = {
        query: {str(one): 2, str(two): 1}
        for query, (one, two) in zip(texts, (rng.choice(list(corpus), 2, False) for _ in texts), strict=True)
    }
    return {"queries": {**texts, "unjudged": "search"}, "corpus": corpus, "qrels": qrels}


def with_similarity(model, similarity: str):
    model.similarity_fn_name = similarity
    return model


@pytest.mark.filterwarnings("ignore:Sparse (CSR tensor support|invariant checks):UserWarning")  # their code
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_sparse_measures_equal_those_of_sentence_transformers(tiny_splade, similarity: str) -> None:
    """Where relevance is binary both evaluators measure the same thing, by the model's own similarity."""
    from sentence_transformers.sparse_encoder.evaluation import SparseInformationRetrievalEvaluator

    model, sample = with_similarity(tiny_splade, similarity), data()
    binary = {query: dict.fromkeys(judged, 1) for query, judged in sample["qrels"].items()}
    ours = RetrievalEvaluator(
        sample["queries"], sample["corpus"], binary, metrics=("nDCG@10", "RR@10", "R@10"), k=20
    )
    theirs = SparseInformationRetrievalEvaluator(
        sample["queries"], sample["corpus"], {q: set(judged) for q, judged in binary.items()}
    )(model)
    result = ours(model)
    # scores that differ by rounding alone may swap two documents, which no document here does
    assert result["nDCG@10"] == pytest.approx(theirs[f"{similarity}_ndcg@10"], abs=1e-9)
    assert result["RR@10"] == pytest.approx(theirs[f"{similarity}_mrr@10"], abs=1e-9)
    assert result["R@10"] == pytest.approx(theirs[f"{similarity}_recall@10"], abs=1e-9)
    assert result["query_active_dims"] == pytest.approx(theirs["query_active_dims"])
    assert result["document_active_dims"] == pytest.approx(theirs["corpus_active_dims"])
    assert result["flops"] == pytest.approx(theirs["avg_flops"], rel=1e-5)  # float32 there


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_dense_measures_equal_those_of_sentence_transformers(tiny_dense, similarity: str) -> None:
    """The same for dense models; they have no sparsity but their index has a size."""
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    model, sample = with_similarity(tiny_dense, similarity), data()
    binary = {query: dict.fromkeys(judged, 1) for query, judged in sample["qrels"].items()}
    ours = RetrievalEvaluator(sample["queries"], sample["corpus"], binary)
    theirs = InformationRetrievalEvaluator(
        sample["queries"], sample["corpus"], {q: set(judged) for q, judged in binary.items()}
    )(model)
    result = ours.evaluate(model)
    assert result.metrics["nDCG@10"] == pytest.approx(theirs[f"{similarity}_ndcg@10"], abs=1e-9)
    assert set(result.sparsity) == {"index_bytes"}


def test_what_would_fail_after_the_evaluation_is_refused_at_once() -> None:
    """In a Trainer that is after a stretch of training."""
    with pytest.raises(ValueError, match=r"query 'q1', document 'd0': .*received 10000"):
        RetrievalEvaluator(**data() | {"qrels": {"q1": {"d0": 10_000}}})


def test_keys_file_and_primary_metric(tiny_splade, tmp_path: Path) -> None:
    """The Trainer selects the best checkpoint by `primary_metric`; every key carries the name."""
    evaluator = RetrievalEvaluator(**data(), name="dev")
    assert evaluator.primary_metric == "dev_nDCG@10"
    assert evaluator.greater_is_better
    first = evaluator(tiny_splade, str(tmp_path / "eval"), epoch=1, steps=20)
    second = evaluator(tiny_splade, str(tmp_path / "eval"), epoch=2, steps=40)
    names = ["nDCG@10", "RR@10", "R@100", "query_active_dims", "document_active_dims", "flops"]
    timing = ["index_bytes", "encode_queries_per_s", "encode_documents_per_s", "search_queries_per_s"]
    timing += ["search_p50_ms", "search_p95_ms", "search_p99_ms"]
    assert set(first) == {f"dev_{key}" for key in names + timing}
    assert set(first) - set(second) == {"dev_encode_documents_per_s"}
    with (tmp_path / "eval" / "Retrieval_evaluation_dev_results.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["epoch", "steps", *names]
    assert [row[:2] for row in rows] == [["1", "20"], ["2", "40"]]
    assert [float(value) for value in rows[0][2:]] == [first[f"dev_{key}"] for key in names]
    assert tiny_splade.model_card_data.eval_results_dict[evaluator] == second


def test_a_result_can_be_written_and_compared(tiny_splade, tmp_path: Path) -> None:
    """A later evaluation is compared with this one query by query, so no digit may be lost on the disk."""
    result = RetrievalEvaluator(**data()).evaluate(tiny_splade)
    write_run(tmp_path / "run.trec", result.run)
    write_scores(tmp_path / "scores.json", result.scores)
    assert read_run(tmp_path / "run.trec") == result.run
    assert read_scores(tmp_path / "scores.json") == result.scores
    assert compare_runs(result.scores, result.scores)["nDCG@10"].p_value == 1


def test_a_csv_of_other_columns_is_not_appended_to(tiny_splade, tmp_path: Path, caplog) -> None:
    """Numbers under the wrong heading are worse than none, and an error would end a training."""
    path = tmp_path / "Retrieval_evaluation_results.csv"
    RetrievalEvaluator(**data(), write_csv=False)(tiny_splade, str(tmp_path))
    assert not path.exists()
    RetrievalEvaluator(**data())(tiny_splade, str(tmp_path))
    before = path.read_bytes()
    RetrievalEvaluator(**data(), metrics=("AP@10",))(tiny_splade, str(tmp_path))
    assert "must have the columns epoch,steps,AP@10," in caplog.text
    assert path.read_bytes() == before


def test_a_csv_that_cannot_be_written_ends_no_training(tiny_splade, tmp_path: Path, caplog) -> None:
    """The evaluation is done, and its row is worth less than the training."""
    (tmp_path / "file").touch()
    assert RetrievalEvaluator(**data())(tiny_splade, str(tmp_path / "file"))
    (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert "Retrieval_evaluation_results.csv gets no row: " in warning


def test_self_matches_are_left_out(tiny_splade) -> None:
    """Where queries are documents, each would find itself first."""
    corpus = {f"t{i}": f"{word} {WORDS[i - 1]}" for i, word in enumerate(WORDS)}
    qrels = {"t0": {"t1": 1}}
    order = list(RetrievalEvaluator(corpus, corpus, qrels).evaluate(tiny_splade).run["t0"])
    place = order.index("t0")
    for k in (place, place + 1, len(corpus)):
        dropped = RetrievalEvaluator(corpus, corpus, qrels, k=k, metrics=("R@1",), exclude_self=True)
        run = dropped.evaluate(tiny_splade).run["t0"]
        assert list(run) == [document for document in order if document != "t0"][:k]


def best_passages(run: dict[str, float], documents: dict[str, str], left_out: str = "") -> dict[str, float]:
    """Document -> the highest score of its passages, highest first: the definition, as a loop."""
    best: dict[str, float] = {}
    for passage, score in run.items():
        document = documents[passage]
        if document != left_out:
            best[document] = max(best.get(document, -np.inf), score)
    return dict(sorted(best.items(), key=lambda item: -item[1]))


@pytest.mark.parametrize("system", ["sparse", "dense", "bm25"])
@pytest.mark.parametrize("exclude_self", [False, True])
def test_a_document_is_as_good_as_its_best_passage(
    system: str, exclude_self: bool, tiny_splade, tiny_dense
) -> None:
    """One document has most of the passages, so it alone fills the first places of many queries."""
    sample = data(documents=120)
    documents = {key: "q0" if n < 80 else f"long{n // 4}" for n, key in enumerate(sample["corpus"])}
    passages = {key: Passage("", text, documents[key]) for key, text in sample["corpus"].items()}
    qrels = {query: {"long25": 1, "q0": 2} for query in sample["qrels"]}

    def evaluated(corpus, qrels, **options):
        evaluator = RetrievalEvaluator(sample["queries"], corpus, qrels, **options)
        if system == "bm25":
            return evaluate_bm25(evaluator)
        return evaluator.evaluate(tiny_splade if system == "sparse" else tiny_dense)

    every = evaluated(sample["corpus"], sample["qrels"], k=120)
    for k in (1, 3, 30):
        found = evaluated(passages, qrels, k=k, metrics=("R@1",), exclude_self=exclude_self)
        for query, run in every.run.items():
            expected = best_passages(run, documents, query if exclude_self else "")
            assert list(found.run[query]) == list(expected)[:k]
            assert list(found.run[query].values()) == pytest.approx(list(expected.values())[:k], rel=1e-5)
        assert found.metrics == score_run(found.run, qrels, ("R@1",)).mean


def test_another_index_can_be_passed(tiny_dense) -> None:
    """An approximate index over few documents finds what the exact one does."""

    def build(vectors, ids, similarity):
        return FaissIndex.build(vectors, ids, similarity, "HNSW32")

    exact = RetrievalEvaluator(**data(), k=10, metrics=("nDCG@10",)).evaluate(tiny_dense)
    other = RetrievalEvaluator(**data(), k=10, metrics=("nDCG@10",), build_index=build).evaluate(tiny_dense)
    assert [list(hits) for hits in other.run.values()] == [list(hits) for hits in exact.run.values()]
    assert other.sparsity["index_bytes"] > exact.sparsity["index_bytes"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"corpus": {}}, "corpus must hold at least one document"),
        ({"qrels": {}}, "must judge at least one query; received none"),
        ({"qrels": {"q0": {}}}, "must judge at least one query; received none"),
        ({"qrels": {"nobody": {"d0": 1}}}, "name query 'nobody'"),
        ({"qrels": {"q0": {"d0"}}}, "judgements of query 'q0' must be a dictionary, .*; received set"),
        ({"qrels": {"q0": {"nothing": 1}}}, "of query 'q0' name document 'nothing'"),
        ({"corpus": {"d0": Passage("", "x", "d0"), "d1": "x"}}, "received 1 passages among 2"),
        ({"corpus": {"p": Passage("", "x", "d9")}}, "name document 'd"),
        ({"corpus": {"d0": None}}, "text of document 'd0' must be a string; received NoneType"),
        ({"queries": {"q0": 3}}, "text of query 'q0' must be a string; received int"),
        ({"corpus": {0: "a"}}, "id of a document must be a string that is not empty; received 0"),
        ({"metrics": ("nDCG@200",)}, "cutoff of measure 'nDCG@200' must be at most k; received k = 100"),
        ({"metrics": ("ndcg",)}, "unknown measure 'ndcg'"),
        ({"metrics": ()}, "at least one measure; received none"),
        ({"k": 0, "metrics": ("AP",)}, "k must be at least 1; received 0"),
    ],
)
def test_bad_input_is_refused_before_anything_is_encoded(change: dict, message: str) -> None:
    """An evaluation that fails at the end of an epoch wastes the epoch."""
    with pytest.raises(ValueError, match=message):
        RetrievalEvaluator(**{**data(), **change})


def test_a_model_of_another_similarity_is_refused(tiny_splade) -> None:
    """Distances are not ranked as dot products in silence."""
    tiny_splade.similarity_fn_name = "euclidean"
    with pytest.raises(ValueError, match="received 'euclidean'"):
        RetrievalEvaluator(**data()).evaluate(tiny_splade)


def test_latency_can_be_left_out(tiny_splade) -> None:
    """A search of seconds over millions of documents is not repeated two hundred times unasked."""
    timing = RetrievalEvaluator(**data(), latency_queries=0).evaluate(tiny_splade).timing
    assert set(timing) == {"encode_queries_per_s", "encode_documents_per_s", "search_queries_per_s"}


def test_an_empty_query_is_searched_like_any_other(tiny_splade) -> None:
    """It has a vector (of the special tokens alone), so its result is defined and counts in the mean."""
    sample = data()
    qrels = {"blank": {"d0": 1}, "q0": {"d1": 1}}
    result = RetrievalEvaluator({**sample["queries"], "blank": ""}, sample["corpus"], qrels).evaluate(
        tiny_splade
    )
    assert set(result.per_query["nDCG@10"]) == {"blank", "q0"}
    assert result.metrics["R@100"] == np.mean(list(result.per_query["R@100"].values()))


def test_a_query_whose_judgements_are_empty_counts_as_zero(tiny_splade) -> None:
    """`score_run` counts it as 0; an evaluator that dropped it told a higher mean of the same run."""
    sample = data()
    qrels = {"q0": {}, **{query: sample["qrels"][query] for query in ("q1", "q2")}}
    result = RetrievalEvaluator(sample["queries"], sample["corpus"], qrels).evaluate(tiny_splade)
    assert result.scores == score_run(result.run, qrels)
    assert result.per_query["R@100"]["q0"] == 0
    assert result.metrics["R@100"] == pytest.approx(sum(result.per_query["R@100"].values()) / 3)


@pytest.mark.parametrize("vector_type", ["sparse", "dense"])
def test_a_trainer_evaluates_and_keeps_the_best(
    vector_type: str, tiny_splade, tiny_dense, tmp_path: Path
) -> None:
    """The stock trainers call it, log its numbers, and find the primary measure among them."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SparseEncoderTrainer
    from sentence_transformers.sentence_transformer.training_args import SentenceTransformerTrainingArguments
    from sentence_transformers.sparse_encoder.training_args import SparseEncoderTrainingArguments

    from lexforge.losses import InfoNCELoss

    sparse = vector_type == "sparse"
    model = tiny_splade if sparse else tiny_dense
    arguments = SparseEncoderTrainingArguments if sparse else SentenceTransformerTrainingArguments
    evaluator = RetrievalEvaluator(**data(), name="dev")
    trainer = (SparseEncoderTrainer if sparse else SentenceTransformerTrainer)(
        model,
        arguments(
            str(tmp_path),
            max_steps=2,
            per_device_train_batch_size=4,
            eval_strategy="steps",
            eval_steps=1,
            save_steps=1,
            load_best_model_at_end=True,
            metric_for_best_model="dev_nDCG@10",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"anchor": WORDS[:7], "positive": WORDS[7:14]}),
        loss=InfoNCELoss(model),
        evaluator=evaluator,
    )
    trainer.train()
    logged = [line["eval_dev_nDCG@10"] for line in trainer.state.log_history if "eval_dev_nDCG@10" in line]
    assert len(logged) == 2
    assert trainer.state.best_metric == max(logged)
    assert all("eval_dev_encode_documents_per_s" in line for line in trainer.state.log_history[:1])
    assert (tmp_path / "eval" / "Retrieval_evaluation_dev_results.csv").is_file()
    # the best model was loaded again: the vectors kept from the last step are not its own
    assert evaluator.evaluate(trainer.model).metrics["nDCG@10"] == pytest.approx(max(logged), abs=1e-9)
