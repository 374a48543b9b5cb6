"""Encode a corpus to blocks of vectors on disk, by one process or many; killed and started again, it goes on.

    accelerate launch scripts/encode_corpus.py --model MODEL --data FOLDER --output vectors

MODEL is a saved `SparseEncoder` or `SentenceTransformer`, or a bare masked language model, which becomes a
SPLADE encoder. FOLDER holds `corpus.jsonl` (or `.gz`) in BEIR layout. `torchrun` launches it as well, and so
does plain python; every process needs the same folder `--output`. The last bits of a vector may depend on the
number of threads a process. `scripts/build_index.py` makes an index of it.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from lexforge.corpus.encoded_corpus import encode_corpus
from lexforge.data import load_corpus
from lexforge.models.load import load_encoder


@dataclass(frozen=True)
class Config:
    """What to encode, by what, and where to."""

    model: str  # a folder or a hub name
    data: Path  # a folder that holds corpus.jsonl
    output: Path  # new, or what an earlier call with the same arguments left
    max_seq_length: int | None = None  # tokens; None: what the model was saved with
    batch_size: int = 32
    block_rows: int = 4096  # documents a block: what memory holds, and what a kill loses at most


def main(cfg: Config) -> None:
    """Encode this process's share."""
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else None
    corpus = load_corpus(cfg.data)
    encoded = encode_corpus(
        load_encoder(cfg.model, cfg.max_seq_length, device),
        corpus,
        cfg.output,
        name=cfg.model,
        block_rows=cfg.block_rows,
        batch_size=cfg.batch_size,
        rank=rank,
        ranks=ranks,
        show_progress_bar=True,
    )
    print(f"rank {rank} of {ranks}: encoded {encoded} blocks of {len(corpus)} documents into {cfg.output}")


if __name__ == "__main__":
    logging.getLogger("lexforge").setLevel(logging.INFO)
    logging.getLogger("lexforge").addHandler(logging.StreamHandler(sys.stderr))
    main(tyro.cli(Config))
