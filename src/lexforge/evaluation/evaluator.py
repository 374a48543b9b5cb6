"""Evaluate sparse and dense encoders on retrieval: graded measures, a run, sparsity and timing."""

from __future__ import annotations

import csv
import logging
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sentence_transformers.base.evaluation.evaluator import BaseEvaluator
from sentence_transformers.base.model import BaseModel
from sentence_transformers.sparse_encoder import SparseEncoder

from lexforge.common.types import Passage, Qrels, Run
from lexforge.corpus import CorpusEncoder, Vectors, encode, vector_type
from lexforge.corpus.own_tokens import expansion_share, keep_own_terms
from lexforge.evaluation.metrics import (
    METRICS,
    RunScores,
    check_metrics,
    check_qrels,
    measure_names,
    score_run,
)
from lexforge.evaluation.search_cost import measure_sparsity, search_latency
from lexforge.models.load import check_encoder
from lexforge.retrieval import BM25Index, Hits, Index, build_exact
from lexforge.retrieval.base import check_k

logger = logging.getLogger(__name__)

# The columns of sparsity in the CSV file, which a dense model leaves empty.
SPARSITY = ("query_active_dims", "document_active_dims", "flops")


@dataclass(frozen=True)
class RetrievalResult:
    """What an evaluation found.

    Args:
        metrics: `{measure: mean over the judged queries}`.
        run: `{query id: {document id: score}}` with strictly descending scores.
        per_query: `{measure: {query id: value}}`.
        sparsity: `index_bytes`, and for a sparse model `query_active_dims`, `document_active_dims` and
            `flops`.
        timing: `search_queries_per_s` for all queries in one call; `search_p50_ms`, `search_p95_ms` and
            `search_p99_ms` for queries searched one by one; `encode_queries_per_s`; and, if the corpus was
            encoded now and not kept from before, `encode_documents_per_s`.
    """

    metrics: dict[str, float]
    run: Run
    per_query: dict[str, dict[str, float]]
    sparsity: dict[str, float]
    timing: dict[str, float]

    @property
    def scores(self) -> RunScores:
        """The means and the values of each query, for `compare_runs` and `write_scores`."""
        return RunScores(self.metrics, self.per_query)


class RetrievalEvaluator(BaseEvaluator):
    """Evaluates a SparseEncoder or a SentenceTransformer on a retrieval task, alone or in a Trainer.

    Every judged query is searched in the whole corpus by the similarity that the model carries
    (`similarity_fn_name`, dot or cosine). The vectors of the corpus are kept while the model is unchanged.

    A text beyond the tokens that a model reads is cut. With passages of the documents as its corpus the
    evaluator searches all of a long document, which is as good as its best passage (MaxP, Dai and Callan
    2019, arXiv 1905.09217). The search stays exact: it goes on until k documents are found.

    Args:
        queries: `{query id: text}`; queries that the judgements do not name are left out.
        corpus: `{document id: text}`, or `{passage id: Passage}`, as `lexforge.data.load_library` divides
            long documents.
        qrels: `{query id: {document id: grade}}`; a grade of 1 or more is relevant. A query without a
            relevant document counts as 0.
        name: Prefix of the measures, and in the name of the CSV file.
        metrics: Names of measures in ir-measures, or its objects; the first one is the primary metric.
        k: Number of documents that are retrieved per query, at least the cutoff of every measure; a measure
            without a cutoff (`AP`) sees k documents.
        batch_size: Number of texts per forward pass.
        exclude_self: Leave out a document whose id is the query's, for a corpus that contains its queries.
        show_progress_bar: Show a progress bar; None decides by the log level, as sentence-transformers does.
        write_csv: Append a row to `<output_path>/Retrieval_evaluation[_name]_results.csv`; where that fails,
            or the file has other columns, a warning says so.
        build_index: A function `(vectors, ids, similarity) -> Index`; None is `build_exact`.
        cache_dir: A folder in which the vectors of the corpus are kept for later processes, one file per
            model; None writes no file.
        latency_queries: Number of queries that are searched one by one for the percentiles in `timing`; 0
            measures none.

    Raises:
        ValueError: If no query is judged, the corpus holds texts beside passages, the judgements name an
            unknown query or document, a grade is not an integer from -9999 to 9999, a measure is unknown or
            its cutoff is above k, or k is below 1.
    """

    def __init__(
        self,
        queries: dict[str, str],
        corpus: Mapping[str, str] | Mapping[str, Passage],
        qrels: Qrels,
        *,
        name: str = "",
        metrics: Sequence[str] = METRICS,
        k: int = 100,
        batch_size: int = 32,
        exclude_self: bool = False,
        show_progress_bar: bool | None = None,
        write_csv: bool = True,
        build_index: Callable[..., Index] | None = None,
        cache_dir: str | Path | None = None,
        latency_queries: int = 200,
    ) -> None:
        super().__init__()
        self.k = check_k(k)
        texts, self._document_of = _texts_and_documents(corpus)
        documents = texts if self._document_of is None else set(self._document_of.values())
        self.qrels = check_qrels(qrels)
        _check_data(queries, texts, documents, self.qrels)
        metrics = measure_names(metrics)
        check_metrics(metrics, self.k)
        self.query_ids = list(self.qrels)
        self.query_texts = [queries[query] for query in self.query_ids]
        self.document_ids = list(texts)
        self.document_texts = list(texts.values())
        self.name = name
        self.metrics = tuple(metrics)
        self.batch_size = batch_size
        self.exclude_self = exclude_self
        self.show_progress_bar = show_progress_bar
        self.write_csv = write_csv
        self.build_index = build_index
        self.latency_queries = latency_queries
        self.primary_metric = f"{name}_{metrics[0]}" if name else metrics[0]
        self.csv_file = f"Retrieval_evaluation{f'_{name}' if name else ''}_results.csv"
        self._last: tuple[Vectors, Vectors] | None = None  # queries and documents, by the same model
        self._corpus = CorpusEncoder(self.document_texts, batch_size, cache_dir)

    @cached_property
    def bm25(self) -> BM25Index:
        """BM25 over the documents that are searched, built when it is first asked for."""
        return BM25Index.build(
            self.document_texts, self.document_ids, show_progress_bar=self._shows_progress()
        )

    def __call__(
        self, model: BaseModel, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Evaluate a model, log the result and append it to the CSV file.

        Args:
            model: The encoder.
            output_path: Folder of the CSV file; None writes none.
            epoch: Epoch for the log and the CSV row; -1 outside training.
            steps: Step for the log and the CSV row; -1 outside training.

        Returns:
            The measures, sparsity and timing of `RetrievalResult`, with the evaluator's name before each key.
        """
        result = self.evaluate(model)
        if self.write_csv and output_path is not None:
            path = Path(output_path) / self.csv_file
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._append_csv(path, result, epoch, steps)
            except OSError as error:  # which is no reason to end a training
                logger.warning("%s gets no row: %s", path, error)
        values = result.metrics | result.sparsity
        when = f", epoch {epoch}, step {steps}" if epoch != -1 else ""
        shown = ", ".join(f"{key} {value:.4f}" for key, value in values.items())
        logger.info("Retrieval evaluation%s%s: %s", f" on {self.name}" if self.name else "", when, shown)
        prefixed: dict[str, float] = self.prefix_name_to_metrics(values | result.timing, self.name)
        self.store_metrics_in_model_card_data(model, prefixed, epoch, steps)
        return prefixed

    def evaluate(self, model: BaseModel) -> RetrievalResult:
        """Encode the queries and the corpus, search, and score the run.

        Args:
            model: A SparseEncoder or a SentenceTransformer.

        Returns:
            Measures, run, values of each query, sparsity and timing.

        Raises:
            TypeError: If the model is of another class.
            ValueError: If the similarity of the model is neither dot nor cosine, or a vector is not finite.
        """
        is_sparse = vector_type(model) == "sparse"
        similarity = check_encoder(model)
        queries, documents, timing = self._encode(model)
        index = (self.build_index or build_exact)(documents, self.document_ids, similarity=similarity)
        index.search(queries[:1], self.k)  # so that a compiled search is compiled before it is timed
        started = time.perf_counter()
        run = self.search(index, queries)
        timing["search_queries_per_s"] = len(self.query_ids) / (time.perf_counter() - started)
        if self.latency_queries:
            timing |= search_latency(index, queries, self._first_depth(), self.latency_queries)
        scores = score_run(run, self.qrels, self.metrics)
        sparsity: dict[str, float] = {}
        if is_sparse:
            sparsity |= measure_sparsity(queries, documents)
        sparsity["index_bytes"] = index.nbytes
        return RetrievalResult(scores.mean, run, scores.per_query, sparsity, timing)

    def evaluate_own_terms(self, model: SparseEncoder) -> dict[str, float]:
        """Measure a sparse model without its expansion: all terms that are not tokens of a text are dropped.

        The vectors are those of the last `evaluate`, if the model is unchanged, and the search is exact.

        Args:
            model: A SparseEncoder.

        Returns:
            The measures, `query_active_dims`, `document_active_dims` and `flops` of what is left, and
            `query_expansion` and `document_expansion`, the shares of active terms that were dropped.
        """
        similarity = check_encoder(model)
        queries, documents = self.vectors(model)
        own_queries = keep_own_terms(model, queries, self.query_texts)
        own_documents = keep_own_terms(model, documents, self.document_texts)
        index = build_exact(own_documents, self.document_ids, similarity=similarity)
        scores = score_run(self.search(index, own_queries), self.qrels, self.metrics)
        shares = {
            "query_expansion": expansion_share(own_queries, queries),
            "document_expansion": expansion_share(own_documents, documents),
        }
        return scores.mean | measure_sparsity(own_queries, own_documents) | shares

    def vectors(self, model: BaseModel) -> tuple[Vectors, Vectors]:
        """Return the vectors that `evaluate` searches, for a closer look at a model that it has evaluated.

        Args:
            model: The model. If the last evaluation measured this model, its vectors are returned as they
                are.

        Returns:
            The vectors of the queries, in the order of `query_ids`, and those of the documents, in the order
            of `document_ids`.
        """
        documents, _ = self._corpus.encode(model, self._shows_progress())
        if self._last is None or self._last[1] is not documents:
            self._last = encode(model, self.query_texts, "query", batch_size=self.batch_size), documents
        return self._last

    def search(self, index: Index | BM25Index, queries: Any) -> Run:
        """Search for the k best documents of each query.

        Args:
            index: An index of the texts of the corpus.
            queries: All queries in the order of `query_ids`, as the index takes them.

        Returns:
            The run. A document scores as its best passage does, and with `exclude_self` the document of the
            query's id is left out.
        """
        depth = self._first_depth()
        if self._document_of is None and not self.exclude_self:
            return index.search(queries, depth).to_run(self.query_ids)
        found: dict[int, tuple[list[str], NDArray[np.float32]]] = {}
        asked = list(range(len(self.query_ids)))
        while asked:
            part = [queries[row] for row in asked] if isinstance(queries, list) else queries[asked]
            hits = index.search(part, depth)
            again = []
            for row, ids, scores in zip(asked, hits.ids, hits.scores, strict=True):
                found[row] = self._documents(self.query_ids[row], ids, scores)
                if len(found[row][0]) < self.k and len(ids) == depth < len(self.document_ids):
                    again.append(row)  # a few long documents fill the places, and others follow
            asked, depth = again, 4 * depth
        ranked = [found[row] for row in range(len(self.query_ids))]
        return Hits([ids for ids, _ in ranked], [scores for _, scores in ranked]).to_run(self.query_ids)

    def _first_depth(self) -> int:
        """Return how many texts are searched for at first, so that k documents are mostly among them."""
        return (self.k + self.exclude_self) * (1 if self._document_of is None else 4)

    def _documents(
        self, query: str, ids: list[str], scores: NDArray[np.float32]
    ) -> tuple[list[str], NDArray[np.float32]]:
        """Return the k best documents among the texts that were found, and their scores."""
        best: dict[str, np.float32] = {}
        for key, score in zip(ids, scores, strict=True):
            document = key if self._document_of is None else self._document_of[key]
            if document not in best and not (self.exclude_self and document == query):
                best[document] = score
        kept = list(best)[: self.k]
        return kept, np.array([best[document] for document in kept], np.float32)

    def _shows_progress(self) -> bool:
        if self.show_progress_bar is None:
            return logger.getEffectiveLevel() in (logging.INFO, logging.DEBUG)
        return self.show_progress_bar

    def _encode(self, model: BaseModel) -> tuple[Vectors, Vectors, dict[str, float]]:
        """The vectors of the queries and of the corpus, and how many texts were encoded per second."""
        timing: dict[str, float] = {}
        started = time.perf_counter()
        queries = encode(model, self.query_texts, "query", batch_size=self.batch_size)
        timing["encode_queries_per_s"] = len(self.query_ids) / (time.perf_counter() - started)
        started = time.perf_counter()
        documents, fresh = self._corpus.encode(model, self._shows_progress())
        if fresh:
            timing["encode_documents_per_s"] = len(self.document_ids) / (time.perf_counter() - started)
        self._last = queries, documents
        return queries, documents, timing

    def get_config_dict(self) -> dict[str, Any]:
        """Return what the model card says about the evaluation."""
        return {"k": self.k, "exclude_self": self.exclude_self}

    def _append_csv(self, path: Path, result: RetrievalResult, epoch: int, steps: int) -> None:
        """Append a row to the CSV file, unless it has other columns.

        Raises:
            OSError: If the file cannot be read or written.
        """
        columns = ["epoch", "steps", *self.metrics, *SPARSITY]
        header = ",".join(columns) + "\n"
        if not path.exists():
            path.write_text(header, encoding="utf-8", newline="\n")
        with path.open("r+", encoding="utf-8", errors="replace", newline="") as file:
            if file.readline() != header:
                logger.warning(
                    "%s gets no row: it must have the columns %s of this evaluation; move it away",
                    path,
                    header.strip(),
                )
                return
            file.seek(0, 2)
            values = {"epoch": epoch, "steps": steps, **result.metrics, **result.sparsity}
            csv.writer(file, lineterminator="\n").writerow([values.get(column, "") for column in columns])


def _texts_and_documents(
    corpus: Mapping[str, str] | Mapping[str, Passage],
) -> tuple[Mapping[str, str], dict[str, str] | None]:
    """Return the text of each id, and the document of each passage; None where the texts are documents.

    Raises:
        ValueError: If the corpus holds texts beside passages.
    """
    passages = {key: one for key, one in corpus.items() if isinstance(one, Passage)}
    if not passages:
        return cast("Mapping[str, str]", corpus), None
    if len(passages) < len(corpus):
        raise ValueError(
            f"the corpus must hold texts or passages; received {len(passages)} passages among {len(corpus)}"
        )
    return (
        {key: one.joined for key, one in passages.items()},
        {key: one.document for key, one in passages.items()},
    )


def _check_data(
    queries: dict[str, str], texts: Mapping[str, str], documents: Container[str], qrels: Qrels
) -> None:
    """Refuse data that cannot be evaluated.

    Raises:
        ValueError: If the corpus or the judgements are empty, an id or a text is not a string, or the
            judgements name an unknown query or document.
    """
    if not texts:
        raise ValueError("the corpus must hold at least one document; received none")
    for what, named in (("query", queries), ("document", texts)):
        for key, text in named.items():
            if not isinstance(key, str) or not key:
                raise ValueError(f"the id of a {what} must be a string that is not empty; received {key!r}")
            if not isinstance(text, str):
                raise ValueError(
                    f"the text of {what} {key!r} must be a string; received {type(text).__name__}"
                )
    for query, judged in qrels.items():
        if query not in queries:
            raise ValueError(f"the judgements name query {query!r}, which is not among the queries")
        for document in judged:
            if document not in documents:
                raise ValueError(
                    f"the judgements of query {query!r} name document {document!r}, which is not in the "
                    "corpus"
                )
    if not any(qrels.values()):
        raise ValueError("the judgements must judge at least one query; received none")
