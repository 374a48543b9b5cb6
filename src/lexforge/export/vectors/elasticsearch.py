"""Elasticsearch: bulk requests for a field of type `sparse_vector`, which is searched exactly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

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
    check_id_bytes,
    cut_bits,
    experimental,
    pretty,
)
from lexforge.export.vectors.opensearch import bulk, check_query_weights


class Elasticsearch(VectorTarget):
    """Documents by the names of terms, in a mapping that switches the pruning of queries off."""

    suffix = "ndjson"
    queries_file = "queries.jsonl"
    shard_bytes = 50 * MEGABYTE  # a request may hold 100 MB (http.max_content_length)

    def check(self, vectors: sparse.csr_array, ids: Sequence[str]) -> None:
        """Refuse ids above 512 bytes."""
        check_id_bytes(ids, 512, "Elasticsearch")

    def check_queries(self, vectors: sparse.csr_array, ids: Sequence[str]) -> None:
        """Refuse weights above 64."""
        check_query_weights(vectors, ids, "Elasticsearch")

    def keeps(self, weights: NDArray[np.float32], survey: Survey) -> NDArray[np.float32]:
        """Lucene's FeatureField keeps the first 9 significant bits of a weight and cuts the others."""
        return cut_bits(weights, 15)

    def document(self, row: Row) -> str:
        """Return the two lines of a bulk request."""
        return bulk(row, self.named_weights(row))

    def query(self, row: Row) -> str:
        """Return the id and the body of a search."""
        return json.dumps({"id": row.id, "body": self._search(row)}, ensure_ascii=False)

    def files(self, survey: Survey, example: Row) -> dict[str, str]:
        """Return the mapping and the example query."""
        field = {"type": "sparse_vector", "index_options": {"prune": False}}
        mapping = {"mappings": {"properties": {FIELD: field}}}
        return {"index.json": pretty(mapping), "example-query.json": pretty(self._search(example))}

    def commands(self) -> str:
        """Return the commands."""
        url = f"http://localhost:9200/{NAME}"
        json_header = "-H 'Content-Type: application/json'"
        return f"""\
curl -X PUT {url} {json_header} --data-binary @index.json
for file in documents-*.ndjson; do
    curl -X POST {url}/_bulk -H 'Content-Type: application/x-ndjson' --data-binary @$file
done
curl -X POST {url}/_search {json_header} --data-binary @example-query.json
"""

    def limits(self, survey: Survey) -> list[str]:
        """Return what a sparse_vector field does."""
        return [
            experimental("Elasticsearch"),
            "sparse_vector keeps 9 significant bits of a weight, a relative error of at most 0.4 %.",
            "From 9.1 on, a new index drops frequent and light terms of a query unless prune is false, as "
            "here; before 9.1, leave index_options out of index.json: nothing is dropped there by default.",
            "A weight of a query must be at most 64.",
            "A request holds at most 100 MB and an id at most 512 bytes. Names with dots need 8.15 or newer.",
        ]

    def _search(self, row: Row) -> dict[str, Any]:
        query = {"field": FIELD, "query_vector": json.loads(self.named_weights(row))}
        return {"size": 10, "query": {"sparse_vector": query}}
