"""Milvus: files for bulk import, and bodies of the REST API."""

from __future__ import annotations

from dataclasses import replace

from lexforge.export.vector_targets.base import (
    FIELD,
    MEGABYTE,
    NAME,
    Row,
    Survey,
    VectorTarget,
    numbered_weights,
    pretty,
    quoted,
)


class Milvus(VectorTarget):
    """Rows `{"position", "document", "vector": {column: weight}}` under the key `rows`."""

    suffix = "json"
    queries_file = "queries.jsonl"
    shard_bytes = 200 * MEGABYTE
    named = False
    frame = ('{"rows":[\n', ",\n", "\n]}\n")

    def document(self, row: Row) -> str:
        """Return a row."""
        name = quoted(row.id)
        # Milvus refuses an empty vector: such a row gets a weight behind the last column, which no query has.
        row = row if row.columns else replace(row, columns=[self.width], weights=["1.0"])
        return f'{{"position":{row.position},"document":{name},"{FIELD}":{numbered_weights(row)}}}'

    def query(self, row: Row) -> str:
        """Return the id and the body of a search."""
        return f'{{"id":{quoted(row.id)},"body":{self._search(row)}}}'

    def files(self, survey: Survey, example: Row) -> dict[str, str]:
        """Return the collection and the example query."""
        fields = [
            {"fieldName": "position", "dataType": "Int64", "isPrimary": True},
            {"fieldName": "document", "dataType": "VarChar", "elementTypeParams": {"max_length": "65535"}},
            {"fieldName": FIELD, "dataType": "SparseFloatVector"},
        ]
        index = {
            "fieldName": FIELD,
            "indexName": FIELD,
            "metricType": "IP",
            "params": {"index_type": "SPARSE_INVERTED_INDEX"},
        }
        schema = {"autoId": False, "enabledDynamicField": False, "fields": fields}
        collection = {"collectionName": NAME, "schema": schema, "indexParams": [index]}
        return {"collection.json": pretty(collection), "example-query.json": self._search(example) + "\n"}

    def commands(self) -> str:
        """Return the commands."""
        url, header = "http://localhost:19530/v2/vectordb", "-H 'Content-Type: application/json'"
        return f"""\
curl -X POST {url}/collections/create {header} --data-binary @collection.json
# Copy documents-*.json to the bucket of the server, and import each:
for file in documents-*.json; do
    curl -X POST {url}/jobs/import/create {header} -d '{{"collectionName":"{NAME}","files":[["'$file'"]]}}'
done
curl -X POST {url}/entities/search {header} --data-binary @example-query.json
"""

    def limits(self, survey: Survey) -> list[str]:
        """Return what Milvus does."""
        return [
            "Weights are float32, and SPARSE_INVERTED_INDEX is exact unless drop_ratio_search is set.",
            "An answer holds at most 16,384 hits, and an id at most 65,535 bytes.",
            "Milvus refuses a vector without a weight. A document without a term gets one in a column behind "
            "the last, which no query has; a query without a term must not be sent.",
            "`lexforge index --index milvus` sends the vectors to a server without these files.",
        ]

    def _search(self, row: Row) -> str:
        return (
            f'{{"collectionName":"{NAME}","data":[{numbered_weights(row)}],"annsField":"{FIELD}","limit":10,'
            f'"outputFields":["document"]}}'
        )
