"""Anserini and Pyserini (Lucene): JSON lines of whole weights, for `JsonVectorCollection`."""

from __future__ import annotations

from lexforge.export.vectors.base import MEGABYTE, Row, Survey, VectorTarget, quoted, scaled

_LONGEST = 255  # Lucene's white-space tokenizer cuts longer tokens


class Anserini(VectorTarget):
    """Documents `{"id", "contents", "vector": {term: whole weight}}`, queries as repeated terms."""

    suffix = "jsonl"
    queries_file = "queries.tsv"
    shard_bytes = 200 * MEGABYTE
    scales = (20, 50, 100, 200, 500)
    separator = "\t"  # as the topic reader `TsvString` reads it
    commands = """\
mkdir documents && mv documents-*.jsonl documents/
python -m pyserini.index.lucene --collection JsonVectorCollection --input documents --index index \\
    --generator DefaultLuceneDocumentGenerator --threads 4 --impact --pretokenized
python -m pyserini.search.lucene --index index --topics example-query.tsv --output run.txt \\
    --hits 10 --impact --pretokenized
"""

    def refuses(self, term: str) -> bool:
        """Terms are split at white space, and long ones are cut."""
        return len(term) > _LONGEST or any(letter.isspace() for letter in term)

    def document(self, row: Row) -> bytes:
        """Return a line of JSON."""
        return f'{{"id":{quoted(row.id)},"contents":"","vector":{self.named_weights(row)}}}'.encode()

    def limits(self, survey: Survey) -> list[str]:
        """Return what Lucene does to impacts."""
        return [
            scaled(survey),
            "A query names each term as often as its weight says. It may hold at most 1,024 distinct terms.",
            "A term with white space, or of more than 255 characters, is called by its number in brackets.",
            "The jar of Anserini 1.x needs Java 21.",
        ]
