"""PostgreSQL with pgvector: a table with a `sparsevec` column, in the text format of COPY."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse

from lexforge.export.vectors.base import MEGABYTE, NAME, Row, Survey, VectorTarget

MOST_TERMS = 16_000  # of a sparsevec
MOST_INDEXED_TERMS = 1_000  # of a sparsevec in an HNSW index


class PgVector(VectorTarget):
    """Lines `position, id, {column:weight,...}/width` for COPY; columns are counted from 1."""

    suffix = "copy"
    queries_file = "queries.copy"
    shard_bytes = 200 * MEGABYTE
    named = False
    commands = f"""\
psql -f schema.sql
for file in documents-*.copy; do psql -c "\\copy {NAME} FROM '$file'"; done
psql -f example-query.sql
"""

    def check(self, vectors: sparse.csr_array, ids: Sequence[str]) -> None:
        """Refuse vectors with more terms than a sparsevec holds, and ids with a NUL."""
        counts = np.diff(vectors.indptr)
        if len(above := np.flatnonzero(counts > MOST_TERMS)):
            name, count = ids[above[0]], counts[above[0]]
            raise ValueError(f"a sparsevec holds at most {MOST_TERMS} weights; {name!r} has {count}")
        if wrong := [name for name in ids if "\0" in name]:
            raise ValueError(f"a text of PostgreSQL holds no NUL character; received the id {wrong[0]!r}")

    def check_queries(self, vectors: sparse.csr_array, ids: Sequence[str]) -> None:
        """Refuse what `check` refuses, because a query is a sparsevec too."""
        self.check(vectors, ids)

    def document(self, row: Row) -> bytes:
        """Return a line of COPY."""
        return self.query(row).encode()

    def query(self, row: Row) -> str:
        """Return a line of COPY, for the table of queries as for that of documents."""
        name = row.id.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
        return f"{row.position}\t{name}\t{self.vector(row)}"

    def vector(self, row: Row) -> str:
        """Return the text of a sparsevec."""
        pairs = zip(row.columns, row.weights, strict=True)
        return "{" + ",".join(f"{column + 1}:{weight}" for column, weight in pairs) + f"}}/{self.width}"

    def files(self, survey: Survey, example: Row) -> dict[str, str]:
        """Return the tables, the index and the example query."""
        columns = (
            f"position bigint PRIMARY KEY, id text UNIQUE NOT NULL, vector sparsevec({self.width}) NOT NULL"
        )
        schema = f"""\
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE {NAME} ({columns});
CREATE TABLE {NAME}_queries ({columns});
"""
        index = f"CREATE INDEX ON {NAME} USING hnsw (vector sparsevec_ip_ops);\n"
        query = f"""\
-- <#> is the negative dot product, so the smallest comes first; equal scores stand in the order of positions.
SELECT id, -(vector <#> '{self.vector(example)}') AS score
FROM {NAME} ORDER BY vector <#> '{self.vector(example)}', position LIMIT 10;
"""
        files = {"schema.sql": schema, "example-query.sql": query}
        if survey.most_terms <= MOST_INDEXED_TERMS:
            files["index.sql"] = (
                "-- Optional: approximate search. Leave `, position` out of the query to use it.\n" + index
            )
        return files

    def limits(self, survey: Survey) -> list[str]:
        """Return what a sparsevec does."""
        index = (
            "index.sql makes an HNSW index, which finds the best documents approximately."
            if survey.most_terms <= MOST_INDEXED_TERMS
            else f"An HNSW index takes at most {MOST_INDEXED_TERMS:,} weights per vector and a document here "
            f"has {survey.most_terms:,}, so there is no index.sql; the search is a sequential scan."
        )
        return [
            f"A sparsevec holds at most {MOST_TERMS:,} weights in float32.",
            f"Without an index the search is exact and reads every row. {index}",
        ]
