"""Write the vectors that `lexforge encode` has encoded as files for another search engine.

    lexforge export vectors --vectors VECTORS --target opensearch --output OUT --queries FOLDER

OUT then holds the documents in files of a size that the engine takes in one request, the queries, the mapping
or schema, an example query, and a README.md with the commands that load them and the limits of the engine.
FOLDER holds `queries.jsonl` in BEIR layout; without it no queries are written, and some of the documents are
searched for when the loss of recall is measured. OUT is whole or absent: an interrupted export begins again.

`anserini`, `ciff` (PISA) and `pgvector` were loaded and searched in their engines. `opensearch`,
`opensearch-sparse-vector`, `elasticsearch` and `vespa` are experimental, because no running server has
loaded them yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lexforge import corpus, data, export, models
from lexforge.common.command_line import refuse_unread
from lexforge.settings import VectorTargetName


@dataclass(frozen=True)
class Config:
    """What to export, for which engine, and where to."""

    vectors: Path  # the folder that `lexforge encode` wrote
    target: VectorTargetName  # experimental: opensearch and its sparse vector, elasticsearch, vespa
    output: Path  # a new or empty folder
    queries: Path | None = None  # a folder that holds queries.jsonl
    model: str | None = None  # the encoder; None takes the name under which the corpus was encoded
    batch_size: int = 32  # queries per forward pass


def main(cfg: Config) -> None:
    """Export the vectors and say what the engine keeps of them."""
    encoded = corpus.EncodedCorpus(cfg.vectors)
    target = export.check_vector_export(encoded, cfg.output, cfg.target)
    terms = queries = None
    if cfg.queries is None:
        refuse_unread(cfg, ["batch_size"], "only --queries are encoded")
    if not target.named and cfg.queries is None:
        refuse_unread(cfg, ["model"], f"{cfg.target} takes numbers of terms, and no queries are encoded")
    # The model names the terms and encodes the queries; an engine that takes numbers needs neither.
    if target.named or cfg.queries is not None:
        manifest = encoded.manifest
        texts = None if cfg.queries is None else data.load_queries(cfg.queries)
        model = models.load_encoder(cfg.model or manifest.model, manifest.max_seq_length)
        terms = export.term_names(model, encoded)
        if texts is not None:
            vectors = corpus.encode(
                model, list(texts.values()), "query", batch_size=cfg.batch_size, show_progress_bar=True
            )
            queries = export.Queries(vectors, list(texts))
    exported = export.export_vectors(encoded, cfg.output, cfg.target, terms=terms, queries=queries)
    survey = exported.survey
    print(f"{len(encoded)} documents in {len(exported.files)} files for {cfg.target} in {cfg.output}")
    if survey.scale != 1:
        print(f"weights were multiplied by {survey.scale} and rounded to whole numbers")
    if survey.left_out:
        print(f"{survey.left_out} queries have no term whose weight is kept, so they are left out")
    recall = f"{survey.recall:.4f} ({survey.searched_with})"
    print(f"recall@10 of what the engine keeps, against exact search: {recall}")
    for sentence in exported.limits:
        print(f"- {sentence}")
