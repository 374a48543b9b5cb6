"""Encode a corpus to blocks of vectors on disk, by one process or by many.

    lexforge encode --model MODEL --data FOLDER --output vectors
    accelerate launch -m lexforge encode --model MODEL --data FOLDER --output vectors

MODEL is a saved `SparseEncoder` or `SentenceTransformer`, or a bare masked language model, which becomes a
SPLADE encoder. FOLDER is in BEIR layout, or any other name that the recipes take. The first form uses one
process and one device; the second starts one process per device, and all of them need the same folder
`--output`. If the command is killed and started again, it encodes the blocks that are missing. The last bits
of a vector can depend on the number of threads per process. `lexforge index` makes an index of the vectors.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from lexforge import corpus, data, models
from lexforge.data import SourceOptions


@dataclass(frozen=True)
class Config:
    """What to encode, by which model, and where to."""

    model: str  # a folder or a name on the hub
    data: str  # whose documents are encoded: a folder in BEIR layout or another name that the recipes take
    output: Path  # a new folder, or one that an earlier call with the same arguments has left
    max_seq_length: int | None = None  # tokens after which a text is cut; None keeps the model's own limit
    batch_size: int = 32  # texts per forward pass
    source: Annotated[SourceOptions, tyro.conf.arg(name="")] = field(default_factory=SourceOptions)
    block_rows: int = 4096  # documents per block: memory holds one block, and a kill loses at most one


def main(cfg: Config) -> None:
    """Encode the share of this process."""
    documents = data.load_documents(str(cfg.data), cfg.source)

    import torch  # here, because neither --help nor a wrong --data need wait for it

    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else None
    encoded = corpus.encode_corpus(
        models.load_encoder(cfg.model, cfg.max_seq_length, device),
        documents,
        cfg.output,
        name=cfg.model,
        block_rows=cfg.block_rows,
        batch_size=cfg.batch_size,
        rank=rank,
        ranks=ranks,
        show_progress_bar=True,
    )
    print(f"rank {rank} of {ranks}: encoded {encoded} blocks of {len(documents)} documents into {cfg.output}")
