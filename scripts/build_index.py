"""Make an index of a corpus that `scripts/encode_corpus.py` encoded, a block at a time.

    python scripts/build_index.py --vectors VECTORS --index inverted --output INDEX
    python scripts/build_index.py --vectors VECTORS --index milvus --uri http://host:19530 --output INDEX

`scripts/search.py` searches it. With `--index milvus` the vectors go to a server, or to a file that ends in
`.db` (Milvus Lite), and INDEX remembers where; killed and started again, it goes on. A server's credentials
are read from the environment, MILVUS_TOKEN.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from lexforge.corpus.encoded_corpus import EncodedCorpus
from lexforge.corpus.stored_index import IndexKind, build_index


@dataclass(frozen=True)
class Config:
    """What to index, how, and where to."""

    vectors: Path  # what encode_corpus.py wrote
    output: Path  # new or empty
    index: IndexKind
    rows: int = 65536  # documents read and added at once; memory holds their vectors beside the index
    uri: str | None = None  # of Milvus: http://host:19530, or a file in .db
    collection: str = "lexforge"  # of Milvus


def main(cfg: Config) -> None:
    """Build and save."""
    options = {}
    if cfg.uri is not None:
        token = os.environ.get("MILVUS_TOKEN", "")
        options = {"uri": cfg.uri, "collection": cfg.collection, "token": token}
    corpus = EncodedCorpus(cfg.vectors)
    index = build_index(corpus, cfg.output, cfg.index, rows=cfg.rows, show_progress_bar=True, **options)
    print(f"{cfg.index} index of {len(index)} documents, {index.nbytes:,} bytes, saved to {cfg.output}")


if __name__ == "__main__":
    logging.getLogger("lexforge").setLevel(logging.INFO)
    logging.getLogger("lexforge").addHandler(logging.StreamHandler(sys.stderr))
    main(tyro.cli(Config))
