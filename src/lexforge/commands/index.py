"""Make an index of a corpus that `lexforge encode` has encoded, block by block.

    lexforge index --vectors VECTORS --index inverted --output INDEX
    lexforge index --vectors VECTORS --index milvus --uri http://host:19530 --output INDEX
    lexforge index --vectors VECTORS --index qdrant --uri http://host:6333 --output INDEX

`lexforge search` searches the index. With `--index milvus` the vectors go to a server, or to a file that
ends in `.db` (Milvus Lite), and with `--index qdrant` to a server, or to a folder that ends in `.qdrant`;
INDEX holds the address. A collection of that name must not be there yet; drop that of an interrupted build.
The credentials of a server are read from the environment variable MILVUS_TOKEN or QDRANT_API_KEY.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lexforge import corpus, retrieval


@dataclass(frozen=True)
class Config:
    """What to index, by which index, and where to."""

    vectors: Path  # the folder that `lexforge encode` wrote
    output: Path  # a new or empty folder
    index: retrieval.IndexKind
    rows: int = 65536  # documents that are added at once; memory holds their vectors beside the index
    uri: str | None = None  # for Milvus and Qdrant: http://host:port, or a name that ends in .db or .qdrant
    collection: str = "lexforge"  # for Milvus and Qdrant: name of the new collection


def main(cfg: Config) -> None:
    """Build the index and save it."""
    options = {}
    if cfg.uri is not None:
        token = os.environ.get("QDRANT_API_KEY" if cfg.index == "qdrant" else "MILVUS_TOKEN", "")
        options = {"uri": cfg.uri, "collection": cfg.collection, "token": token}
    vectors = corpus.EncodedCorpus(cfg.vectors)
    index = corpus.build_index(
        vectors, cfg.output, cfg.index, rows=cfg.rows, show_progress_bar=True, **options
    )
    print(f"{cfg.index} index of {len(index)} documents, {index.nbytes:,} bytes, saved to {cfg.output}")
