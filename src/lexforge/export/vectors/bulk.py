"""OpenSearch and Elasticsearch: bulk requests for Lucene's features by name, or for numbered terms."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lexforge.export.vectors.base import (
    FIELD,
    MEGABYTE,
    NAME,
    Row,
    Survey,
    VectorTarget,
    cut_bits,
    experimental,
    pretty,
    quoted,
)

LARGEST_QUERY_WEIGHT = 64  # of Lucene's FeatureField
LARGEST_TERM = 65536  # the sparse_vector field keeps the number of a term in 16 bits
_URL = f"http://localhost:9200/{NAME}"
_JSON = "-H 'Content-Type: application/json'"


class BulkTarget(VectorTarget):
    """Bulk requests, and searches in JSON."""

    engine: ClassVar[str]  # its name in messages
    suffix = "ndjson"
    queries_file = "queries.jsonl"
    shard_bytes = 50 * MEGABYTE  # a request may hold 100 MB (http.max_content_length)
    commands = f"""\
curl -X PUT {_URL} {_JSON} --data-binary @index.json
for file in documents-*.ndjson; do
    curl -X POST {_URL}/_bulk -H 'Content-Type: application/x-ndjson' --data-binary @$file
done
curl -X POST {_URL}/_search {_JSON} --data-binary @example-query.json
"""

    def check(self, vectors: sparse.csr_array, ids: Sequence[str]) -> None:
        """Refuse ids above 512 bytes."""
        for name in ids:
            if len(name.encode()) > 512:
                raise ValueError(f"{self.engine} takes ids of at most 512 bytes; received {name[:60]!r}...")

    def document(self, row: Row) -> bytes:
        """Return the two lines of a bulk request."""
        return f'{{"index":{{"_id":{quoted(row.id)}}}}}\n{{"{FIELD}":{self.named_weights(row)}}}'.encode()

    def query(self, row: Row) -> str:
        """Return the id and the body of a search."""
        return json.dumps({"id": row.id, "body": self.search(row)}, ensure_ascii=False)

    def files(self, survey: Survey, example: Row) -> dict[str, str]:
        """Return the mapping and the example query."""
        return {
            "index.json": pretty(self.mapping(survey)),
            "example-query.json": pretty(self.search(example)),
        }

    @abstractmethod
    def mapping(self, survey: Survey) -> dict[str, Any]:
        """Return the settings of the index."""

    @abstractmethod
    def search(self, row: Row) -> dict[str, Any]:
        """Return the body of a search."""


class FeatureTarget(BulkTarget):
    """Bulk requests for Lucene's FeatureField, by the names of terms."""

    def check_queries(self, vectors: sparse.csr_array, ids: Sequence[str]) -> None:
        """Refuse weights above 64."""
        wrong = np.flatnonzero(vectors.data > LARGEST_QUERY_WEIGHT)
        if len(wrong):
            row = int(np.searchsorted(vectors.indptr, wrong[0], side="right")) - 1
            raise ValueError(
                f"{self.engine} takes weights of queries up to {LARGEST_QUERY_WEIGHT}; query {ids[row]!r} "
                f"has {vectors.data[wrong[0]]}"
            )

    def stored_weights(self, weights: NDArray[np.float32], survey: Survey) -> NDArray[np.float32]:
        """Lucene keeps the first 9 significant bits of a weight and cuts the others."""
        return cut_bits(weights, 15)


class OpenSearch(FeatureTarget):
    """A field of type `rank_features`, which is searched exactly."""

    engine = "OpenSearch"

    def refuses(self, term: str) -> bool:
        """A feature of `rank_features` must not hold a dot."""
        return "." in term

    def mapping(self, survey: Survey) -> dict[str, Any]:
        """Return the settings of the index."""
        return {"mappings": {"properties": {FIELD: {"type": "rank_features"}}}}

    def search(self, row: Row) -> dict[str, Any]:
        """Return the body of a search."""
        tokens = json.loads(self.named_weights(row))
        return {"size": 10, "query": {"neural_sparse": {FIELD: {"query_tokens": tokens}}}}

    def limits(self, survey: Survey) -> list[str]:
        """Return what a rank_features field does."""
        return [
            experimental("OpenSearch"),
            "rank_features keeps 9 significant bits of a weight, a relative error of at most 0.4 %.",
            "A weight of a query must be at most 64.",
            "A name with a dot is refused, so such a term is called by its number in brackets. A pipeline "
            "that encodes texts inside OpenSearch must use the same names; an exported model spells those of "
            "a byte-level tokenizer (RoBERTa, ModernBERT) otherwise.",
            "A request holds at most 100 MB and an id at most 512 bytes.",
        ]


class Elasticsearch(FeatureTarget):
    """A field of type `sparse_vector`, in a mapping that switches the pruning of queries off."""

    engine = "Elasticsearch"

    def mapping(self, survey: Survey) -> dict[str, Any]:
        """Return the settings of the index."""
        field = {"type": "sparse_vector", "index_options": {"prune": False}}
        return {"mappings": {"properties": {FIELD: field}}}

    def search(self, row: Row) -> dict[str, Any]:
        """Return the body of a search."""
        query = {"field": FIELD, "query_vector": json.loads(self.named_weights(row))}
        return {"size": 10, "query": {"sparse_vector": query}}

    def limits(self, survey: Survey) -> list[str]:
        """Return what a sparse_vector field does."""
        return [
            experimental("Elasticsearch"),
            "sparse_vector keeps 9 significant bits of a weight, a relative error of at most 0.4 %.",
            "From 9.1 on, a new index drops frequent and light terms of a query unless prune is false, as "
            "here; before 9.1, leave index_options out of index.json: nothing is dropped there by default.",
            "A weight of a query must be at most 64.",
            "A request holds at most 100 MB and an id at most 512 bytes.",
            "Names with dots need 8.15 or newer. A model that runs inside Elasticsearch writes each dot as "
            "__, so such terms of its queries find nothing in these documents.",
        ]


class OpenSearchSparseVector(BulkTarget):
    """A field of type `sparse_vector` (OpenSearch 3.3) with the numbers of terms, which Seismic searches."""

    engine = "OpenSearch"
    named = False

    def check(self, vectors: sparse.csr_array, ids: Sequence[str]) -> None:
        """Refuse long ids and vocabularies that 16 bits cannot number."""
        super().check(vectors, ids)
        if vectors.shape[1] > LARGEST_TERM:
            raise ValueError(
                f"a sparse_vector of OpenSearch numbers terms modulo {LARGEST_TERM}, so two terms of a "
                f"larger vocabulary would be one; received {vectors.shape[1]}: use the target opensearch"
            )

    def stored_weights(self, weights: NDArray[np.float32], survey: Survey) -> NDArray[np.float32]:
        """Seismic keeps one byte per weight: 255 stands for the ceiling in the mapping."""
        return _bytes(weights, survey.largest_document)

    def query_weights(self, weights: NDArray[np.float32], survey: Survey) -> NDArray[np.float32]:
        """The weights of a query become bytes in the same way, with a ceiling of their own."""
        return _bytes(weights, _search_ceiling(survey))

    def mapping(self, survey: Survey) -> dict[str, Any]:
        """Return the settings of the index."""
        parameters = {
            "quantization_ceiling_ingest": survey.largest_document,
            "quantization_ceiling_search": _search_ceiling(survey),
        }
        field = {"type": "sparse_vector", "method": {"name": "seismic", "parameters": parameters}}
        return {"settings": {"index": {"sparse": True}}, "mappings": {"properties": {FIELD: field}}}

    def search(self, row: Row) -> dict[str, Any]:
        """Return the body of a search."""
        tokens = json.loads(self.named_weights(row))
        method = {"k": 10, "top_n": 10, "heap_factor": 1.0}
        query = {"neural_sparse": {FIELD: {"query_tokens": tokens, "method_parameters": method}}}
        return {"size": 10, "query": query}

    def limits(self, survey: Survey) -> list[str]:
        """Return what a sparse_vector field does."""
        search = (
            f"{survey.largest_query:.4g} for queries, the largest weights of both"
            if survey.largest_query
            else "the same for queries, the largest weight of a document: export with --queries to set it"
        )
        return [
            experimental("OpenSearch"),
            "A weight is kept in one byte: 255 stands for the ceiling, and larger weights are cut to it. The "
            f"mapping sets {survey.largest_document:.4g} for documents and {search}.",
            "Terms are numbered modulo 65,536.",
            "A segment of fewer documents than approximate_threshold (1,000,000) is searched exactly; larger "
            "ones by Seismic, where top_n and heap_factor trade recall for speed.",
        ]


def _search_ceiling(survey: Survey) -> float:
    """Return the ceiling of the weights of queries: without queries, that of the documents."""
    return survey.largest_query or survey.largest_document


def _bytes(weights: NDArray[np.float32], ceiling: float) -> NDArray[np.float32]:
    """Return weights as OpenSearch's ByteQuantizer: 0 to 255, halves rounded up, larger ones cut."""
    cut = np.minimum(weights, np.float32(ceiling)) * np.float32(255) / np.float32(ceiling)
    return np.floor(cut + np.float32(0.5))
