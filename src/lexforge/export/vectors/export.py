"""Vectors of an encoded corpus as files for another search engine, written as a stream.

The folder holds the documents in files of a size that the engine takes in one request, the queries, the
mapping or schema, an example query, and a README.md with the commands and the limits of the engine. It is
whole or absent. Memory holds one block of the corpus and one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy import sparse
from sentence_transformers import SentenceTransformer, SparseEncoder

from lexforge import models
from lexforge.common.progress import Progress
from lexforge.corpus.encoded_corpus import EncodedCorpus
from lexforge.export.vectors.anserini import Anserini
from lexforge.export.vectors.base import Row, Survey, VectorTarget
from lexforge.export.vectors.bulk import Elasticsearch, OpenSearch, OpenSearchSparseVector
from lexforge.export.vectors.ciff import Ciff
from lexforge.export.vectors.pgvector import PgVector
from lexforge.export.vectors.survey import Queries, canonical_blocks, survey_vectors
from lexforge.export.vectors.vespa import Vespa
from lexforge.models.fingerprint import fingerprint
from lexforge.retrieval.vectors import sparse_vectors
from lexforge.settings import VectorTargetName
from lexforge.storage.files import check_new, new_directory

EXAMPLE_TERMS = 10  # of the example query, where a document gives it

VECTOR_TARGETS: dict[VectorTargetName, type[VectorTarget]] = {
    "anserini": Anserini,
    "ciff": Ciff,
    "opensearch": OpenSearch,
    "opensearch-sparse-vector": OpenSearchSparseVector,
    "elasticsearch": Elasticsearch,
    "vespa": Vespa,
    "pgvector": PgVector,
}
"""What writes the files of each target, by its name."""


@dataclass(frozen=True)
class Exported:
    """What an export has written.

    Args:
        survey: What is known of the vectors.
        files: The names of the files of documents.
        limits: Sentences on what the engine does to the vectors and what it refuses.
    """

    survey: Survey
    files: list[str]
    limits: list[str]


def check_vector_export(
    corpus: EncodedCorpus, directory: str | Path, target: VectorTargetName
) -> type[VectorTarget]:
    """Refuse, before any work, an export that cannot be made.

    Args:
        corpus: The encoded corpus.
        directory: Where the files are to be written.
        target: A name of `VectorTargetName`.

    Returns:
        The class of the target.

    Raises:
        FileExistsError: If the directory is a file or holds anything.
        ValueError: If the vectors are dense or the target is unknown.
    """
    if target not in VECTOR_TARGETS:
        raise ValueError(f"the target must be one of {', '.join(VECTOR_TARGETS)}; received {target!r}")
    if corpus.manifest.vector_type != "sparse":
        raise ValueError(
            f"only sparse vectors are exported; {corpus.directory} holds {corpus.manifest.vector_type} ones, "
            f"of {corpus.manifest.model}"
        )
    check_new(directory)
    return VECTOR_TARGETS[target]


def term_names(model: SparseEncoder | SentenceTransformer, corpus: EncodedCorpus) -> list[str]:
    """Return the name of each column of an encoded corpus, by the tokenizer of its model.

    Args:
        model: The encoder of the corpus.
        corpus: The encoded corpus.

    Returns:
        One name per column; a column without a token is named by its number in brackets.

    Raises:
        ValueError: If the corpus was encoded by another model.
    """
    manifest = corpus.manifest
    if fingerprint(model) != manifest.fingerprint:
        raise ValueError(
            f"the model must be the one that encoded the corpus, {manifest.model} at "
            f"{manifest.max_seq_length} tokens; received a model (at {model.max_seq_length} tokens) with "
            "other weights or settings"
        )
    return models.name_columns(model, range(corpus.width))


def export_vectors(
    corpus: EncodedCorpus,
    directory: str | Path,
    target: VectorTargetName,
    *,
    terms: Sequence[str] | None = None,
    queries: Queries | None = None,
) -> Exported:
    """Write an encoded corpus as files for another engine; an interrupted call leaves nothing.

    Args:
        corpus: The encoded corpus; its model must be sparse. If the model is searched by cosine, all vectors
            are scaled to unit length, so that the engine's dot product is the cosine.
        directory: A new or empty directory.
        target: A name of `VectorTargetName`.
        terms: The name of each column of the vectors; needed by engines that name terms.
        queries: Queries to export too; the loss of recall is then measured with them.

    Returns:
        What was written.

    Raises:
        FileExistsError: If the directory is a file or holds anything.
        ValueError: If the vectors are dense, the target is unknown or needs names, or the engine cannot hold
            a document.
    """
    made_by = check_vector_export(corpus, directory, target)
    engine = made_by(terms, corpus.width)
    if queries is not None:
        similarity = corpus.manifest.similarity
        queries = Queries(sparse_vectors(queries.vectors, "queries", engine.width, similarity), queries.ids)
    survey = survey_vectors(corpus, engine, queries)
    with new_directory(directory) as folder:
        shards = _write_documents(corpus, folder, engine, survey)
        files = engine.finish(folder, shards)
        _write_others(corpus, folder, engine, survey, queries)
    return Exported(survey, files, engine.limits(survey))


def _write_documents(corpus: EncodedCorpus, folder: Path, target: VectorTarget, survey: Survey) -> list[str]:
    """Write the files of documents, and return their names.

    A file has at most `target.shard_bytes` bytes; a single document may take more.
    """
    names: list[str] = []
    with Progress(len(corpus), "Export") as progress:

        def write(shard: list[bytes]) -> None:
            names.append(f"documents-{len(names):05d}.{target.suffix}")
            (folder / names[-1]).write_bytes(target.shard(shard))
            progress.update(len(shard))

        shard: list[bytes] = []
        size = position = 0
        for vectors, ids in canonical_blocks(corpus):
            for row in rows_of(target, survey, vectors, ids, position):
                content = target.document(row)
                if shard and size + len(content) + 1 > target.shard_bytes:
                    write(shard)
                    shard, size = [], 0
                shard.append(content)
                size += len(content) + 1  # with the end of its line
            position += len(ids)
        if shard:
            write(shard)
    return names


def _write_others(
    corpus: EncodedCorpus, folder: Path, target: VectorTarget, survey: Survey, queries: Queries | None
) -> None:
    """Write the queries, the schema, the example query and the README."""
    if queries is not None:
        with (folder / target.queries_file).open("w", encoding="utf-8", newline="\n") as file:
            for row in rows_of(target, survey, queries.vectors, queries.ids, as_queries=True):
                if row.columns or not target.separator:  # Anserini refuses the file for an id without a term
                    file.write(target.query(row) + "\n")
    # The survey has refused texts without any term; a query without one finds nothing.
    if queries is None:
        vectors = next(vectors for vectors, _ in canonical_blocks(corpus) if vectors.nnz)
        rows = rows_of(target, survey, _like_a_query(vectors), ["example"], as_queries=True)
    else:
        rows = rows_of(target, survey, queries.vectors, queries.ids, as_queries=True)
    example = next(row for row in rows if row.columns)
    texts = target.files(survey, example) | {"README.md": _readme(corpus, target, survey, queries)}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())


def _like_a_query(vectors: sparse.csr_array) -> sparse.csr_array:
    """Return the strongest terms of the first document that has any, with 1 as the largest weight, `[1, V]`.

    A whole document can have more terms, and larger weights, than an engine allows in a query.
    """
    row = vectors[[int(np.flatnonzero(np.diff(vectors.indptr))[0])]]
    weights = row.data / row.data.max()
    weights[np.argsort(-weights, kind="stable")[EXAMPLE_TERMS:]] = 0
    example = sparse.csr_array((weights, row.indices, row.indptr), shape=row.shape)
    example.eliminate_zeros()
    return example


def rows_of(
    target: VectorTarget,
    survey: Survey,
    vectors: sparse.csr_array,
    ids: Sequence[str],
    position: int = 0,
    *,
    as_queries: bool = False,
) -> Iterator[Row]:
    """Yield texts as they are written.

    Args:
        target: What is exported to.
        survey: The survey of the vectors.
        vectors: CSR `[n, V] float32`, canonical.
        ids: The n ids.
        position: Number of the first text.
        as_queries: Whether the texts are queries.

    Yields:
        The n rows.
    """
    if target.scales:
        rounded = (target.query_weights if as_queries else target.stored_weights)(vectors.data, survey)
        vectors = sparse.csr_array((rounded, vectors.indices, vectors.indptr), shape=vectors.shape, copy=True)
        vectors.eliminate_zeros()
        weights = vectors.data.astype(np.int64).astype(str).tolist()
    else:
        weights = vectors.data.astype(
            str
        ).tolist()  # the shortest decimal that is read back to the same float32
    columns, bounds = vectors.indices.tolist(), vectors.indptr.tolist()
    for i, (start, end) in enumerate(pairwise(bounds)):
        yield Row(position + i, ids[i], columns[start:end], weights[start:end])


def _readme(corpus: EncodedCorpus, target: VectorTarget, survey: Survey, queries: Queries | None) -> str:
    """Return the page that says what the folder holds, how it is loaded, and what the engine loses."""
    lines = [
        f"# Sparse vectors for {type(target).__name__}\n",
        f"{len(corpus)} documents over {target.width} terms, at most {survey.most_terms} per document.",
    ]
    if queries is not None:
        lines.append(f"`{target.queries_file}` holds {len(queries.ids) - survey.left_out} queries.")
    if survey.left_out:
        lines.append(f"{survey.left_out} queries have no term whose weight is kept, so they are left out.")
    if corpus.manifest.similarity == "cosine":
        lines.append("All vectors have unit length, so that the engine's dot product is the model's cosine.")
    if survey.empty:
        lines.append(f"{survey.empty} documents have no term, so no search finds them.")
    lines.append(
        "Recall@10 of exact search over the numbers that the engine keeps, against the vectors themselves: "
        f"{survey.recall:.4f} ({survey.searched_with}).\n"
    )
    lines += ["```bash", target.commands + "```\n", "## Limits\n"]
    return "\n".join([*lines, *(f"- {sentence}" for sentence in target.limits(survey))]) + "\n"
