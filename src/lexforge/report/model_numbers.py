"""What is measured once at the end of a run, from a sample of texts, so that the run can be diagnosed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sentence_transformers import SparseEncoder

from lexforge.common.samples import evenly_spaced
from lexforge.corpus import vector_type
from lexforge.corpus.own_tokens import own_token_ids
from lexforge.evaluation import RetrievalEvaluator
from lexforge.models import TokenWeights, special_token_ids
from lexforge.runs.run_directory import write_json

DIAGNOSIS_FILE = "diagnosis.json"
DOCUMENTS, QUERIES = 500, 200  # texts of the sample
TOP = 10  # the strongest terms of a text, among which stop words are counted
EVERYWHERE = 0.9  # a term that this share of the documents activates tells no documents apart


def record_symptoms(
    run: str | Path,
    model: SparseEncoder,
    evaluator: RetrievalEvaluator,
    *,
    idf: NDArray[np.floating],
    stopword_ids: Sequence[int],
) -> None:
    """Measure a trained model on evenly spaced queries and documents, and write what `diagnose` reads of it.

    The file in the run directory, diagnosis.json, holds plain numbers by name under `queries` and `documents`
    (`numbers_of_texts`), and `vocabulary_size` and `stop_words`, the sizes of the vocabulary and of its part
    that is stop words. A model with the head of BGE-M3 has no number of expansion.

    Args:
        run: The run directory.
        model: A SPLADE encoder.
        evaluator: The queries of a test or dev split, and the collection that they search. What it encoded
            to evaluate this model is taken; otherwise it encodes all of them.
        idf: `[V]` float, inverse document frequencies of the collection (`lexforge.data.corpus_idf`).
        stopword_ids: Ids of the stop words of the texts' language (`lexforge.data.stopword_ids`).

    Raises:
        TypeError: If the model is not sparse.
        ValueError: If idf is not `[V]`.

    Source: docs/diagnosis.md defines each number.
    """
    if vector_type(model) != "sparse":
        raise TypeError(f"only a sparse model has terms; received {type(model).__name__}")
    queries, documents = evaluator.vectors(model)  # CSR [Q, V] and [N, V]
    size = documents.shape[1]
    if idf.shape != (size,):
        raise ValueError(f"idf must be [V] with V = {size}; received shape {list(idf.shape)}")
    special = np.asarray(special_token_ids(model.tokenizer), dtype=np.int64)
    stop = np.zeros(size, dtype=bool)
    stop[np.asarray(stopword_ids, dtype=np.int64)] = True
    content: dict[str, Any] = {"vocabulary_size": size, "stop_words": int(stop.sum())}
    for name, vectors, texts, most in (
        ("queries", queries, evaluator.query_texts, QUERIES),
        ("documents", documents, evaluator.document_texts, DOCUMENTS),
    ):
        places = evenly_spaced(len(texts), most)
        tokens = own_token_ids(model, [texts[place] for place in places])
        own = [np.setdiff1d(np.asarray(row, np.int64), special) for row in tokens]
        content[name] = numbers_of_texts(sparse.csr_array(vectors)[places], own, idf, stop)
        if any(isinstance(module, TokenWeights) for module in model.modules()):
            content[name]["expansion"] = None  # by its nature, and not for a want of training
    write_json(Path(run) / DIAGNOSIS_FILE, content)


def numbers_of_texts(
    vectors: sparse.csr_array,
    own_terms: list[NDArray[np.int64]],
    idf: NDArray[np.floating],
    stop: NDArray[np.bool_],
) -> dict[str, float | None]:
    """Measure vectors of queries or of documents.

    Args:
        vectors: CSR `[n, V]`, weights >= 0; n >= 1.
        own_terms: The distinct terms of each text.
        idf: `[V]`.
        stop: `[V]`, whether a term is a stop word.

    Returns:
        Means over the texts that define the number; None where no text does. docs/diagnosis.md defines each.
    """
    shares: dict[str, list[float]] = {
        name: [] for name in ("stop_words_of_top", "own_recall", "expansion", "rare_weight")
    }
    active_terms = []
    for row, own in enumerate(own_terms):
        start, end = vectors.indptr[row : row + 2]
        weight = np.zeros(vectors.shape[1])  # [V]
        weight[vectors.indices[start:end]] = vectors.data[start:end]
        active = np.flatnonzero(weight > 0)
        active_terms.append(active)
        if len(active):
            strongest = active[np.argsort(-weight[active], kind="stable")[:TOP]]
            shares["stop_words_of_top"].append(float(stop[strongest].mean()))
            shares["expansion"].append(1 - float(np.isin(active, own).mean()))
        content = own[~stop[own]]
        if len(content):
            shares["own_recall"].append(float((weight[content] > 0).mean()))
        if len(own) >= 2 and len(active):
            # The rarer half of the own terms, those that were lost included.
            rare = own[np.argsort(-idf[own], kind="stable")[: len(own) // 2]]
            shares["rare_weight"].append(float(weight[rare].mean() / weight[active].mean()))
    counts = np.array([len(active) for active in active_terms])
    frequency = np.bincount(np.concatenate(active_terms), minlength=vectors.shape[1])  # [V]
    everywhere = frequency >= EVERYWHERE * len(own_terms)
    total_active = int(counts.sum())
    return {
        "texts": len(own_terms),
        "active": float(counts.mean()),
        "empty": float((counts == 0).mean()),
        "everywhere": float(frequency[everywhere].sum()) / total_active if total_active else None,
        "own_terms": float(np.mean([len(own) for own in own_terms])),
        **{name: float(np.mean(values)) if values else None for name, values in shares.items()},
    }
