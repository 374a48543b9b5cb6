"""A corpus as blocks of vectors on disk: encoded by any number of processes, resumed after a kill.

`manifest.json` is written first and says what is encoded by what; block `i` holds the documents from
`i * block_rows` on. So a block's bytes depend on neither the number of ranks nor on earlier kills, every rank
knows its blocks without asking another, and the corpus is complete when all blocks are there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
from scipy import sparse
from sentence_transformers import SparseEncoder
from sentence_transformers.base.model import BaseModel

from lexforge.common.files import leftover, remove_leftovers, write_file
from lexforge.common.manifest import MANIFEST, content_sha256, pack_manifest, unpack_manifest
from lexforge.common.progress import Progress
from lexforge.common.similarity import Similarity
from lexforge.corpus.encoding import Vectors, encode
from lexforge.corpus.vector_file import pack, unpack
from lexforge.models.fingerprint import fingerprint, text_digest
from lexforge.models.load import check_encoder
from lexforge.retrieval.base import check_ids

FORMAT = "lexforge-encoded-corpus"
_OWN = re.compile(r"manifest\.json|block-\d{6}\.safetensors")


@dataclass(frozen=True)
class Manifest:
    """What an encoded corpus holds.

    Args:
        model: Name of the encoder, for the reader.
        fingerprint: Digest of everything that decides its vectors.
        kind: `sparse` or `dense` vectors.
        similarity: What the model was trained for.
        max_seq_length: Tokens a text is cut after; None where the model sets no limit.
        corpus: Digest of ids and texts.
        documents: Their number.
        block_rows: Documents a block; the last one may hold fewer.
        batch_size: Texts a forward pass (padding, and so the last bits of a vector, depend on it).
    """

    model: str
    fingerprint: str
    kind: Literal["sparse", "dense"]
    similarity: Similarity
    max_seq_length: int | None
    corpus: str
    documents: int
    block_rows: int
    batch_size: int

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.documents // self.block_rows)

    @property
    def key(self) -> str:
        """Digest that every block of this corpus carries; the model's name is no part of it."""
        return content_sha256(asdict(replace(self, model="")))


def encode_corpus(
    model: BaseModel,
    corpus: Mapping[str, str],
    directory: str | Path,
    *,
    name: str,
    block_rows: int = 4096,
    batch_size: int = 32,
    rank: int = 0,
    ranks: int = 1,
    show_progress_bar: bool = False,
) -> int:
    """Encode this rank's share of the missing blocks; memory holds the vectors of one block.

    Ranks share the directory and nothing else: block `i` belongs to rank `i % ranks`. Blocks are written
    beside and renamed, so a killed process leaves whole blocks only, and the next call encodes the others;
    the same call in two processes at once does some work twice, and spoils nothing.

    Args:
        model: A `SparseEncoder` or a `SentenceTransformer`.
        corpus: Document id to text.
        directory: New, empty, or an earlier call's with the same model and corpus.
        name: What to call the model in the manifest.
        block_rows: Documents a block.
        batch_size: Texts a forward pass.
        rank: This process, from 0.
        ranks: Number of processes.
        show_progress_bar: Show what this rank has done.

    Returns:
        Number of blocks encoded now.

    Raises:
        FileExistsError: The directory holds something else.
        ValueError: An empty corpus, a number below 1, another model, corpus or setting than the directory's
            manifest says, or a damaged block.
    """
    if not corpus:
        raise ValueError("the corpus is empty: no document to encode")
    if block_rows < 1 or batch_size < 1 or not 0 <= rank < ranks:
        raise ValueError(
            f"block_rows {block_rows} and batch_size {batch_size} must be at least 1, rank {rank} from 0 to "
            f"ranks - 1 = {ranks - 1}"
        )
    ids = list(corpus)
    check_ids(ids, len(ids), set())
    manifest = Manifest(
        name,
        fingerprint(model),
        "sparse" if isinstance(model, SparseEncoder) else "dense",
        check_encoder(model),
        model.max_seq_length,
        text_digest(part for pair in corpus.items() for part in pair),
        len(corpus),
        block_rows,
        batch_size,
    )
    folder = Path(directory)
    _claim(folder, manifest, rank, ranks)
    mine = range(rank, manifest.blocks, ranks)
    encoded = 0
    with Progress(
        sum(_rows(manifest, number) for number in mine), "Encode", show=show_progress_bar
    ) as progress:
        for number in mine:
            path = _block_path(folder, number)
            if path.exists():
                _read_block(path, manifest, number)  # refuses a damaged one
            else:
                chosen = ids[number * block_rows : (number + 1) * block_rows]
                vectors = encode(model, [corpus[i] for i in chosen], "document", batch_size=batch_size)
                write_file(path, _block_bytes(vectors, chosen, manifest, number), rank)
                encoded += 1
            progress.update(_rows(manifest, number))
    return encoded


class EncodedCorpus:
    """The vectors of a corpus as `encode_corpus` wrote them; a block is read when it is asked for.

    Args:
        directory: What `encode_corpus` wrote.

    Raises:
        FileNotFoundError: No manifest, or a block is missing.
        ValueError: The manifest is damaged or of another format.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.manifest = _read_manifest(self.directory)
        total = self.manifest.blocks
        missing = [i for i in range(total) if not _block_path(self.directory, i).is_file()]
        if missing:
            raise FileNotFoundError(
                f"{self.directory}: {len(missing)} of {total} blocks are missing, first {missing[0]}; "
                "encode_corpus with the same arguments adds them"
            )

    def __len__(self) -> int:
        """Number of documents."""
        return self.manifest.documents

    def blocks(self, rows: int = 1) -> Iterator[tuple[Vectors, list[str]]]:
        """Vectors and ids in the order of the corpus, a few blocks at a time.

        Args:
            rows: Blocks are joined until they hold so many documents.

        Yields:
            CSR `[n, V] float32` or an array `[n, D] float32`, and n ids.

        Raises:
            ValueError: A block is damaged or of another corpus, or `rows` below 1.
        """
        if rows < 1:
            raise ValueError(f"rows is {rows}; it must be at least 1")
        together = max(1, rows // self.manifest.block_rows)
        numbers = iter(range(self.manifest.blocks))
        while group := list(islice(numbers, together)):
            read = [_read_block(_block_path(self.directory, i), self.manifest, i) for i in group]
            yield _join([vectors for vectors, _ in read]), [key for _, ids in read for key in ids]

    def merged(self) -> tuple[Vectors, list[str]]:
        """All vectors as one matrix, and all ids."""
        return next(self.blocks(len(self) + self.manifest.block_rows))


def _join(parts: Sequence[Vectors]) -> Vectors:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return sparse.csr_array(sparse.vstack(parts, format="csr"))


def _rows(manifest: Manifest, number: int) -> int:
    return min(manifest.block_rows, manifest.documents - number * manifest.block_rows)


def _block_path(folder: Path, number: int) -> Path:
    return folder / f"block-{number:06d}.safetensors"


def _claim(folder: Path, manifest: Manifest, rank: int, ranks: int) -> None:
    """Write the manifest, or compare it with the one there; remove what killed processes left half written.

    A rank removes the leftovers of its own number, and of numbers that no rank has now. Where the same
    command runs already, its process writes the file again.
    """
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; a corpus is encoded into a folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path in list(folder.iterdir()):
        half = leftover(path.name)
        if _OWN.fullmatch(path.name if half is None else half.name) is None:
            raise FileExistsError(f"{folder} holds {path.name}, which is no part of an encoded corpus")
    remove_leftovers(folder, _OWN.pattern, rank=rank, ranks=ranks, older_than_s=0)
    path = folder / MANIFEST
    if not path.exists():
        write_file(path, f"{pack_manifest(FORMAT, asdict(manifest))}\n".encode(), rank)
    there = _read_manifest(folder)
    if there.key != manifest.key:
        found, now = asdict(there), asdict(manifest)
        different = [
            f"{field} was {found[field]!r} and is now {now[field]!r}"
            for field in now
            if field != "model" and found[field] != now[field]
        ]
        raise ValueError(f"{folder} was begun with other settings: {'; '.join(different)}")


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no encoded corpus: {MANIFEST} is missing")
    try:
        manifest = Manifest(**unpack_manifest(path.read_bytes(), FORMAT))
        if manifest.documents < 1 or manifest.block_rows < 1:
            raise ValueError(f"{manifest.documents} documents in blocks of {manifest.block_rows}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not the manifest of an encoded corpus: {error!r}") from error
    return manifest


def _block_bytes(vectors: Vectors, ids: Sequence[str], manifest: Manifest, number: int) -> bytes:
    names = np.frombuffer(json.dumps(list(ids), ensure_ascii=False).encode(), np.uint8)
    return pack(vectors, f"{manifest.key} {number}", ids=names)


def _read_block(path: Path, manifest: Manifest, number: int) -> tuple[Vectors, list[str]]:
    """The vectors and ids of a block; one that is damaged or not this corpus's is refused."""
    try:
        vectors, arrays = unpack(path, f"{manifest.key} {number}")
        ids = json.loads(arrays["ids"].tobytes())
        if len(ids) != vectors.shape[0]:
            raise ValueError(f"{len(ids)} ids for {vectors.shape[0]} vectors")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} is cut, altered, or of another corpus ({error}); delete it and encode again"
        ) from error
    return vectors, ids
