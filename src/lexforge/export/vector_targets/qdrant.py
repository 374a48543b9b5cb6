"""Qdrant: bodies of requests that upsert points with one sparse vector each."""

from __future__ import annotations

from lexforge.export.vector_targets.base import (
    FIELD,
    MEGABYTE,
    NAME,
    Row,
    Survey,
    VectorTarget,
    pretty,
    quoted,
)


class Qdrant(VectorTarget):
    """Points `{"id": position, "vector": {indices, values}, "payload": {"document": id}}`."""

    suffix = "json"
    queries_file = "queries.jsonl"
    shard_bytes = 30 * MEGABYTE  # a request may hold 32 MB (max_request_size_mb)
    named = False
    frame = ('{"points":[\n', ",\n", "\n]}\n")

    def document(self, row: Row) -> str:
        """Return a point; its number is the position, because Qdrant takes whole numbers and UUIDs only."""
        return (
            f'{{"id":{row.position},"vector":{{"{FIELD}":{_vector(row)}}},'
            f'"payload":{{"document":{quoted(row.id)}}}}}'
        )

    def query(self, row: Row) -> str:
        """Return the id and the body of a query."""
        return f'{{"id":{quoted(row.id)},"body":{self._search(row)}}}'

    def files(self, survey: Survey, example: Row) -> dict[str, str]:
        """Return the collection and the example query."""
        return {
            "collection.json": pretty({"vectors": {}, "sparse_vectors": {FIELD: {}}}),
            "example-query.json": self._search(example) + "\n",
        }

    def commands(self) -> str:
        """Return the commands."""
        url, header = f"http://localhost:6333/collections/{NAME}", "-H 'Content-Type: application/json'"
        return f"""\
curl -X PUT {url} {header} --data-binary @collection.json
for file in documents-*.json; do
    curl -X PUT "{url}/points?wait=true" {header} --data-binary @$file
done
curl -X POST {url}/points/query {header} --data-binary @example-query.json
"""

    def limits(self, survey: Survey) -> list[str]:
        """Return what Qdrant does."""
        return [
            "Weights are float32, and the search is exact.",
            'A point is numbered by the position of its document; the id stands in the payload "document".',
            "A request holds at most 32 MB.",
            "Documents of equal score come in no fixed order.",
        ]

    def _search(self, row: Row) -> str:
        return f'{{"query":{_vector(row)},"using":"{FIELD}","limit":10,"with_payload":true}}'


def _vector(row: Row) -> str:
    columns = ",".join(map(str, row.columns))
    return f'{{"indices":[{columns}],"values":[{",".join(row.weights)}]}}'
