"""Encode a corpus to blocks of vectors on disk, by one process or by many.

    lexforge encode --model MODEL --data FOLDER --output vectors
    accelerate launch -m lexforge encode --model MODEL --data FOLDER --output vectors

MODEL is a saved `SparseEncoder` or `SentenceTransformer`, or a bare masked language model, which becomes a
SPLADE encoder. FOLDER is in BEIR layout, or any other name that the recipes take. The first form uses one
process and one device; the second starts one process per device, and all of them need the same folder
`--output`. If the command is killed and started again, it encodes the blocks that are missing. The last bits
of a vector can depend on the number of threads per process. `lexforge index` makes an index of the vectors.

`--precision bf16` computes in bfloat16, and the vectors differ by about one percent. From 22 million weights
on it encodes two to three times as many documents per second on a processor with AMX. `--plan` encodes a
sample, tells how long the whole will take and how large it will be, and writes nothing but caches.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from lexforge import corpus, data, models
from lexforge.common.numbers import byte_size, duration
from lexforge.settings import NO_PREFIX, EncodingPrecision, SourceOptions


@dataclass(frozen=True)
class Config:
    """What to encode, by which model, and where to."""

    model: str  # a folder, a run directory or a name on the hub
    data: str  # whose documents are encoded: a folder in BEIR layout or another name that the recipes take
    output: Path  # a new folder, or one that an earlier call with the same arguments has left
    max_seq_length: int | None = None  # tokens after which a text is cut; None keeps the model's own limit
    batch_size: int = 32  # texts per forward pass
    precision: EncodingPrecision = "fp32"  # of the products; bf16 is faster on GPUs and some processors
    source: Annotated[SourceOptions, NO_PREFIX] = SourceOptions()
    block_rows: int = 4096  # documents per block: memory holds one block, and a kill loses at most one
    plan: bool = False  # tell time and size, measured on a sample of the documents, and write nothing


SAMPLED = 512  # documents of a plan


def plan(cfg: Config, documents: Mapping[str, str], ranks: int, device: str | None) -> str:
    """Tell from a sample how long all documents will take, and how large their vectors will be."""
    from lexforge.corpus.vector_file import write_vectors

    model = models.load_encoder(cfg.model, cfg.max_seq_length, device)
    per_second, vectors = corpus.encoding_speed(
        model, documents.values(), most=SAMPLED, batch_size=cfg.batch_size, precision=cfg.precision
    )
    sampled = vectors.shape[0]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sample"
        write_vectors(file, vectors, "a sample")
        ids = sum(len(key.encode()) + 4 for key in documents)  # with quotes and a comma
        size = file.stat().st_size * len(documents) / sampled + ids
    place = next(path for path in (cfg.output.resolve(), *cfg.output.resolve().parents) if path.exists())
    devices = f" by {ranks} processes" if ranks > 1 else ""
    return (
        f"{len(documents):,} documents, of which {sampled:,} were encoded for this plan\n"
        f"{per_second:,.1f} documents per second per process: {duration(len(documents) / per_second / ranks)}"
        f"{devices}\n{byte_size(size)} for the vectors; {byte_size(shutil.disk_usage(place).free)} are free "
        f"at {place}"
    )


def main(cfg: Config) -> None:
    """Encode the share of this process."""
    documents = data.load_documents(cfg.data, cfg.source)

    import torch  # here, because neither --help nor a wrong --data need wait for it

    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else None
    if cfg.plan:
        if rank == 0:
            print(plan(cfg, documents, ranks, device))
        return
    encoded = corpus.encode_corpus(
        models.load_encoder(cfg.model, cfg.max_seq_length, device),
        documents,
        cfg.output,
        name=cfg.model,
        block_rows=cfg.block_rows,
        batch_size=cfg.batch_size,
        precision=cfg.precision,
        rank=rank,
        ranks=ranks,
    )
    print(f"rank {rank} of {ranks}: encoded {encoded} blocks of {len(documents)} documents into {cfg.output}")
