"""A sample of the test queries with their terms, their hits and the terms that matched, for the explorer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sentence_transformers import SparseEncoder
from sentence_transformers.base.model import BaseModel

from lexforge.common.samples import evenly_spaced
from lexforge.common.types import Run
from lexforge.common.words import shorten
from lexforge.corpus import named_terms, shared_weights
from lexforge.corpus.own_tokens import own_tokens
from lexforge.evaluation import RetrievalEvaluator, RetrievalResult, split_terms

QUERIES = 200  # queries of the sample, at most
HITS = 10  # hits of the trained model per query
OTHER_HITS = 5  # hits of BM25 and of the model before training per query
TERMS = 20  # terms of a query that are kept, own and of the expansion each
MATCHED = 12  # terms of a match that are kept
CHARACTERS = 320  # a text is cut to this length


def sample_searches(
    model: BaseModel, evaluator: RetrievalEvaluator, results: Mapping[str, RetrievalResult]
) -> dict[str, Any]:
    """Describe searches of a trained model for a reader who asks why a document was found.

    The sample holds all queries if there are few. Otherwise half of it are the queries that the model wins
    and loses most clearly against the other systems, and half are evenly spaced.

    Args:
        model: The trained model.
        evaluator: Gives the queries, the documents and the judgements.
        results: What was found, by system: `trained`, and any other systems to compare with.

    Returns:
        In JSON types: `queries`, and `texts` with the text of every document that is named, cut in length. A
        query has `id`, `text`, `relevant` (how many documents are), `hits` (`id`, `score`, `grade` and
        `terms`, which are pairs of a term and what it adds to the score), the first hits of each other system
        (pairs of an id and a grade), and of a sparse model `own` and `expansion` (pairs of a term and its
        weight) and `lost` (own tokens that are not active).
    """
    queries, documents = evaluator.vectors(model)
    places = {document: place for place, document in enumerate(evaluator.document_ids)}
    rows = _sample(evaluator.query_ids, results)
    weighted = named_terms(model, queries[rows]) if isinstance(model, SparseEncoder) else None
    described = []
    named: dict[str, None] = {}  # the documents whose texts are needed, in order
    for number, row in enumerate(rows):
        query, text = evaluator.query_ids[row], evaluator.query_texts[row]
        grades = evaluator.qrels[query]
        found = _best(results["trained"].run, query, HITS)
        entry: dict[str, Any] = {
            "id": query,
            "text": _cut(text),
            "relevant": sum(grade > 0 for grade in grades.values()),
            "hits": [
                {"id": document, "score": round(score, 4), "grade": grades.get(document, 0)}
                for document, score in found
            ],
        }
        if weighted is not None:
            assert isinstance(model, SparseEncoder)
            entry |= _query_terms(model, text, weighted[number])
            positions = [places[document] for document, _ in found]
            if found:
                matches = named_terms(model, shared_weights(model, queries[[row]], documents[positions]))
                for hit, terms in zip(entry["hits"], matches, strict=True):
                    hit["terms"] = _rounded(terms[:MATCHED])
        named |= dict.fromkeys(document for document, _ in found)
        for system, result in results.items():
            if system != "trained":
                other = _best(result.run, query, OTHER_HITS)
                entry[system] = [[document, grades.get(document, 0)] for document, _ in other]
                named |= dict.fromkeys(document for document, _ in other)
        described.append(entry)
    texts = {document: _cut(evaluator.document_texts[places[document]]) for document in named}
    return {"queries": described, "texts": texts}


def _sample(query_ids: Sequence[str], results: Mapping[str, RetrievalResult]) -> list[int]:
    """The positions of the queries of the sample, in the order of the queries."""
    if len(query_ids) <= QUERIES:
        return list(range(len(query_ids)))
    chosen = dict.fromkeys(evenly_spaced(len(query_ids), QUERIES // 2))
    measure = next(iter(results["trained"].metrics))
    values = [
        np.array([result.per_query[measure][query] for query in query_ids]) for result in results.values()
    ]
    trained = np.array([results["trained"].per_query[measure][query] for query in query_ids])
    differences = [trained - other for other in values]  # [Q] each; that of the model to itself is 0
    clearest = np.argsort(-np.max(np.abs(differences), axis=0), kind="stable").tolist()
    for place in clearest:
        if len(chosen) == QUERIES:
            break
        chosen.setdefault(place)
    return sorted(chosen)


def _query_terms(model: SparseEncoder, text: str, weighted: list[tuple[str, float]]) -> dict[str, Any]:
    own, expansion = split_terms(model, text, weighted)
    active = {term for term, _ in own}
    tokens = dict.fromkeys(own_tokens(model, text))
    return {
        "own": _rounded(own[:TERMS]),
        "expansion": _rounded(expansion[:TERMS]),
        "expansion_terms": len(expansion),
        "lost": [token for token in tokens if token not in active][:TERMS],
    }


def _best(run: Run, query: str, hits: int) -> list[tuple[str, float]]:
    return sorted(run.get(query, {}).items(), key=lambda hit: -hit[1])[:hits]


def _rounded(pairs: Sequence[tuple[str, float]]) -> list[list[Any]]:
    return [[term, round(float(value), 4)] for term, value in pairs]


def _cut(text: str) -> str:
    return shorten(text, CHARACTERS, " …")
