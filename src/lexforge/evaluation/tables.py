"""Text for a reader: what systems and measures are called, a table of them, and searches with their terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from sentence_transformers import SparseEncoder

from lexforge.common.command_line import printable
from lexforge.common.types import Run
from lexforge.common.words import shorten
from lexforge.corpus.own_tokens import own_tokens
from lexforge.models.prompts import encode_kind

if TYPE_CHECKING:
    from lexforge.evaluation.evaluator import RetrievalEvaluator

SYSTEM_NAMES = {
    "bm25": "BM25",
    "initial": "before training",
    "initial_sample": "before training, in a sample of the documents",
    "trained": "after training",
    "own_terms": "without its expansion",
}
"""What a run measures, in the order of its page, and what a reader calls it."""

MEASURE_NAMES = {
    "query_active_dims": "terms per query",
    "document_active_dims": "terms per document",
    "flops": "FLOPS",
    "index_bytes": "index",
    "query_expansion": "expansion of queries",
    "document_expansion": "expansion of documents",
    "search_queries_per_s": "queries per second",
}
"""What a reader calls a measure whose name is not that of ir-measures."""

SEARCHES = 3  # that are shown
HITS, TERMS = 3, 8  # of each of them


def metrics_table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Format measures as a table with one row per system.

    Args:
        rows: `{system: {measure: value}}`; a system may lack a measure.

    Returns:
        Lines of text. The columns stand in the order of their first appearance; a missing value is a dash.
    """
    columns = list(dict.fromkeys(column for values in rows.values() for column in values))
    cells = [["", *columns]]
    for system, values in rows.items():
        cells.append([system, *(_number(values[column]) if column in values else "-" for column in columns)])
    widths = [max(len(row[place]) for row in cells) for place in range(len(cells[0]))]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        )
        for row in cells
    )


def example_searches(model: SparseEncoder, evaluator: RetrievalEvaluator, run: Run) -> str:
    """Format searches for a reader: the query, its own terms, the terms of its expansion, and its best hits.

    Args:
        model: The encoder that made the run.
        evaluator: Gives the queries, the first `SEARCHES` of which are shown, the documents and the
            judgements; a hit of grade 1 or more is marked by a star.
        run: `{query id: {document id: score}}`.

    Returns:
        Lines of text, with at most `HITS` hits and `TERMS` terms of each kind. Control characters of the
        corpus stand in them as escapes.
    """
    queries = dict(zip(evaluator.query_ids[:SEARCHES], evaluator.query_texts, strict=False))
    best = {query: sorted(run.get(query, {}).items(), key=lambda hit: -hit[1])[:HITS] for query in queries}
    named = {document for hits in best.values() for document, _ in hits}
    documents = zip(evaluator.document_ids, evaluator.document_texts, strict=True)
    shown = {document: text for document, text in documents if document in named}
    lines = []
    for query_id, text in queries.items():
        weighted = cast("list[tuple[str, float]]", model.decode(encode_kind(model, [text], "query")[0]))
        own, expanded = split_terms(model, text, weighted)
        lines += ["", f"query: {_shorten(text)}"]
        lines.append(f"  own terms: {_weights(own[:TERMS])}")
        lines.append(f"  expansion: {_weights(expanded[:TERMS])}")
        for rank, (document_id, score) in enumerate(best[query_id], start=1):
            mark = "*" if evaluator.qrels[query_id].get(document_id, 0) > 0 else " "
            lines.append(f"  {rank}.{mark} {score:7.2f}  {document_id}  {_shorten(shown[document_id])}")
    return "\n".join(printable(line) for line in lines)


def split_terms(
    model: SparseEncoder, text: str, weighted: Sequence[tuple[str, float]]
) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    """Split the active terms of a text into those among its own tokens, and the others.

    Args:
        model: The encoder.
        text: The text; tokens beyond the model's `max_seq_length` do not count.
        weighted: Its active terms with their weights.

    Returns:
        Own terms and terms of the expansion, each in the order given.
    """
    tokens = set(own_tokens(model, text))
    own = [pair for pair in weighted if pair[0] in tokens]
    return own, [pair for pair in weighted if pair[0] not in tokens]


def _weights(pairs: Sequence[tuple[str, float]]) -> str:
    """Format terms and weights on one line."""
    return " ".join(f"{term}:{weight:.2f}" for term, weight in pairs) or "none"


def _shorten(text: str) -> str:
    """Cut a text to one line of 90 characters."""
    return shorten(text, 90, "...")


def _number(value: float) -> str:
    """Format a value: four decimals below 10, as most measures need, and one decimal above."""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.1f}"
