"""Vespa: a feed of documents with a mapped tensor, and the application package that ranks by it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

SCHEMA = f"""\
schema {NAME} {{
    document {NAME} {{
        field document_id type string {{
            indexing: summary | attribute
        }}
        field {FIELD} type tensor<bfloat16>(token{{}}) {{
            indexing: attribute
        }}
    }}
    rank-profile sparse {{
        inputs {{
            query(q) tensor<float>(token{{}})
        }}
        first-phase {{
            expression: sum(query(q) * attribute({FIELD}))
        }}
    }}
}}
"""
SERVICES = f"""\
<?xml version="1.0" encoding="utf-8" ?>
<services version="1.0">
    <container id="default" version="1.0">
        <search/>
        <document-api/>
    </container>
    <content id="{NAME}" version="1.0">
        <min-redundancy>1</min-redundancy>
        <documents>
            <document type="{NAME}" mode="index"/>
        </documents>
        <nodes>
            <node distribution-key="0" hostalias="node1"/>
        </nodes>
    </content>
</services>
"""


class Vespa(VectorTarget):
    """Feed operations `put` with a `tensor<bfloat16>(token{})`, ranked by its dot product with the query."""

    suffix = "jsonl"
    queries_file = "queries.jsonl"
    shard_bytes = 200 * MEGABYTE
    commands = """\
vespa deploy --wait 300 application
for file in documents-*.jsonl; do vespa feed $file; done
curl -X POST http://localhost:8080/search/ -H 'Content-Type: application/json' \\
    --data-binary @example-query.json
"""

    def stored_weights(self, weights: NDArray[np.float32], survey: Survey) -> NDArray[np.float32]:
        """Vespa cuts a float32 to the 8 significant bits of a bfloat16."""
        return cut_bits(weights, 16)

    def document(self, row: Row) -> bytes:
        """Return a put operation."""
        name = quoted(row.id)
        put = quoted(f"id:{NAME}:{NAME}::{row.id}")
        fields = f'{{"document_id":{name},"{FIELD}":{self.named_weights(row)}}}'
        return f'{{"put":{put},"fields":{fields}}}'.encode()

    def query(self, row: Row) -> str:
        """Return the id and the body of a query."""
        return json.dumps({"id": row.id, "body": self._search(row)}, ensure_ascii=False)

    def files(self, survey: Survey, example: Row) -> dict[str, str]:
        """Return the application package and the example query."""
        return {
            f"application/schemas/{NAME}.sd": SCHEMA,
            "application/services.xml": SERVICES,
            "example-query.json": pretty(self._search(example)),
        }

    def limits(self, survey: Survey) -> list[str]:
        """Return what Vespa does."""
        return [
            experimental("Vespa"),
            "A weight is cut to bfloat16, 8 significant bits, a relative error of at most 0.8 %.",
            "Tensors rank and do not match: the query of the example scores every document. For millions of "
            "documents, let a cheaper operator (weakAnd over texts, wand over a weighted set) choose them.",
            "A document without a shared term is returned with score 0 if there are too few others.",
        ]

    def _search(self, row: Row) -> dict[str, Any]:
        return {
            "yql": f"select document_id from {NAME} where true",
            "ranking": "sparse",
            "input.query(q)": json.loads(self.named_weights(row)),
            "hits": 10,
        }
