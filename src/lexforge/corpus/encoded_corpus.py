"""A corpus as blocks of vectors on disk, encoded by any number of processes and resumed after a kill.

`manifest.json` is written first; it names the model and the corpus. Block `i` holds `block_rows` documents
from number `i * block_rows` on. So the bytes of a block depend neither on the number of ranks nor on earlier
kills, every rank knows its blocks without asking another, and the corpus is complete when all blocks exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
from sentence_transformers.base.model import BaseModel

from lexforge.common.progress import Progress
from lexforge.common.similarity import Similarity
from lexforge.common.text_identity import text_digest
from lexforge.corpus.encoding import Vectors, check_precision, encode, join_vectors, vector_type
from lexforge.corpus.vector_file import read_vectors, write_vectors
from lexforge.models.fingerprint import fingerprint
from lexforge.models.lengths import smallest_limit
from lexforge.models.load import check_encoder
from lexforge.retrieval.base import check_ids
from lexforge.settings import EncodingPrecision, VectorType
from lexforge.storage.files import finished_name, remove_leftovers, write_file
from lexforge.storage.manifest import MALFORMED, MANIFEST, content_sha256, pack_manifest, unpack_manifest

FORMAT = "lexforge-encoded-corpus"
_OWN = re.compile(r"manifest\.json|block-\d{6}\.safetensors")


@dataclass(frozen=True)
class Manifest:
    """What an encoded corpus holds.

    Args:
        model: Name of the encoder, for people who read the manifest.
        fingerprint: Digest of everything that decides the vectors of the encoder.
        vector_type: Whether the vectors are `sparse` or `dense`.
        similarity: The similarity that the model was trained for.
        max_seq_length: Number of tokens after which a text is cut; None if the model sets no limit.
        corpus: Digest of all ids and texts.
        documents: Number of documents.
        block_rows: Number of documents per block; the last block may hold fewer.
        batch_size: Number of texts per forward pass. It decides the padding and so the last bits of a vector.
        precision: The precision of the products, as of `encode`.
    """

    model: str
    fingerprint: str
    vector_type: VectorType
    similarity: Similarity
    max_seq_length: int | None
    corpus: str
    documents: int
    block_rows: int
    batch_size: int
    precision: EncodingPrecision

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.documents // self.block_rows)

    @property
    def key(self) -> str:
        """The digest that every block of this corpus carries; the name of the model is no part of it."""
        return content_sha256(asdict(replace(self, model="")))


def encode_corpus(
    model: BaseModel,
    corpus: Mapping[str, str],
    directory: str | Path,
    *,
    name: str,
    block_rows: int = 4096,
    batch_size: int = 32,
    precision: EncodingPrecision = "fp32",
    rank: int = 0,
    ranks: int = 1,
) -> int:
    """Encode this rank's share of the missing blocks; memory holds the vectors of one block at a time.

    The ranks share the directory and nothing else; block `i` belongs to rank `i % ranks`. A block is written
    to another name and then renamed, so a killed process leaves whole blocks only, and the next call encodes
    the others. If two processes make the same call at once, some work is done twice and nothing is damaged.

    Args:
        model: A SparseEncoder or a SentenceTransformer.
        corpus: `{document id: text}`.
        directory: A new or empty directory, or one of an earlier call with the same model and corpus.
        name: The name of the model in the manifest; a folder is kept with its whole path.
        block_rows: Number of documents per block.
        batch_size: Number of texts per forward pass.
        precision: The precision of the products, as of `encode`.
        rank: Number of this process, from 0.
        ranks: Number of processes.

    Returns:
        The number of blocks that were encoded now.

    Raises:
        FileExistsError: If the directory holds anything else.
        ValueError: If the corpus is empty, a number is out of range, the processor has no instructions for
            the precision, the directory was begun with another model, corpus or setting, or a block is
            damaged.
    """
    if not corpus:
        raise ValueError("the corpus must hold at least one document; received none")
    if block_rows < 1 or batch_size < 1 or not 0 <= rank < ranks:
        raise ValueError(
            "block_rows and batch_size must be at least 1, and rank from 0 to ranks - 1; received block_rows "
            f"{block_rows}, batch_size {batch_size}, rank {rank} and ranks {ranks}"
        )
    check_precision(precision, model.device)
    ids = list(corpus)
    check_ids(ids, len(ids), set())
    manifest = Manifest(
        str(Path(name).resolve()) if Path(name).is_dir() else name,
        fingerprint(model),
        vector_type(model),
        check_encoder(model),
        smallest_limit([model.max_seq_length]),
        text_digest(part for pair in corpus.items() for part in pair),
        len(corpus),
        block_rows,
        batch_size,
        precision,
    )
    folder = Path(directory)
    _claim(folder, manifest)
    mine = range(rank, manifest.blocks, ranks)
    encoded = 0
    with Progress(sum(_rows(manifest, number) for number in mine), "Encode") as progress:
        for number in mine:
            path = _block_path(folder, number)
            if path.exists():
                _read_block(path, manifest, number)  # raises an error if the block is damaged
            else:
                chosen = ids[number * block_rows : (number + 1) * block_rows]
                texts = [corpus[i] for i in chosen]
                vectors = encode(model, texts, "document", batch_size=batch_size, precision=precision)
                write_block(folder, vectors, chosen, manifest, number)
                encoded += 1
            progress.update(_rows(manifest, number))
    return encoded


class EncodedCorpus:
    """The vectors of a corpus as `encode_corpus` wrote them; a block is read only when it is asked for.

    Args:
        directory: The directory that `encode_corpus` wrote.

    Raises:
        FileNotFoundError: If the manifest or a block is missing.
        ValueError: If the manifest is damaged or of another format.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.manifest = _read_manifest(self.directory)
        total = self.manifest.blocks
        missing = [i for i in range(total) if not _block_path(self.directory, i).is_file()]
        if missing:
            raise FileNotFoundError(
                f"{self.directory}: {len(missing)} of {total} blocks are missing, the first is {missing[0]}; "
                "run encode_corpus with the same arguments again to add them"
            )

    def __len__(self) -> int:
        """Return the number of documents."""
        return self.manifest.documents

    @cached_property
    def width(self) -> int:
        """The number of columns of the vectors, from the first block."""
        return int(next(self.blocks())[0].shape[1])

    def blocks(self, rows: int = 1) -> Iterator[tuple[Vectors, list[str]]]:
        """Yield vectors and ids in the order of the corpus, a few blocks at a time.

        Args:
            rows: The most documents to yield at once; a single block may hold more.

        Yields:
            CSR `[n, V] float32` or an array `[n, D] float32`, and the n ids.

        Raises:
            ValueError: If a block is damaged or of another corpus.
        """
        together = max(1, rows // self.manifest.block_rows)
        numbers = iter(range(self.manifest.blocks))
        while group := list(islice(numbers, together)):
            read = [_read_block(_block_path(self.directory, i), self.manifest, i) for i in group]
            yield join_vectors([part for part, _ in read]), [key for _, part in read for key in part]

    def merged(self) -> tuple[Vectors, list[str]]:
        """Return all vectors as one matrix, and all ids."""
        return next(self.blocks(len(self) + self.manifest.block_rows))


def _rows(manifest: Manifest, number: int) -> int:
    """Return the number of documents in a block; the last block may hold fewer than the others."""
    return min(manifest.block_rows, manifest.documents - number * manifest.block_rows)


def _block_path(folder: Path, number: int) -> Path:
    return folder / f"block-{number:06d}.safetensors"


def _claim(folder: Path, manifest: Manifest) -> None:
    """Write the manifest or compare it with the existing one, and remove half-written files.

    Raises:
        FileExistsError: If the directory is a file, or holds anything that is no part of an encoded corpus.
        ValueError: If the existing manifest names another model, corpus or setting.
    """
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"a corpus is encoded into a directory; {folder} is a file")
    folder.mkdir(parents=True, exist_ok=True)
    for path in list(folder.iterdir()):
        if _OWN.fullmatch(finished_name(path.name)) is None:
            raise FileExistsError(f"{folder} holds {path.name}, which is no part of an encoded corpus")
    remove_leftovers(folder, _OWN.pattern)
    path = folder / MANIFEST
    if not path.exists():
        write_file(path, f"{pack_manifest(FORMAT, asdict(manifest))}\n".encode())
    there = _read_manifest(folder)
    if there.key != manifest.key:
        found, now = asdict(there), asdict(manifest)
        different = [
            f"{field} was {found[field]!r} and is now {now[field]!r}"
            for field in now
            if field not in ("model", "corpus") and found[field] != now[field]
        ]
        if found["corpus"] != now["corpus"]:  # digests, which say nothing to a reader
            different.append("the texts have changed")
        raise ValueError(
            f"{folder} was begun with other settings: {'; '.join(different)}. Give those of the beginning "
            "again, or delete the folder"
        )


def _read_manifest(folder: Path) -> Manifest:
    """Read the manifest of an encoded corpus.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is damaged or of another format.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no encoded corpus: {MANIFEST} is missing")
    try:
        manifest = Manifest(**unpack_manifest(path.read_bytes(), FORMAT))
        if manifest.documents < 1 or manifest.block_rows < 1:
            raise ValueError(f"it says {manifest.documents} documents in blocks of {manifest.block_rows}")
    except MALFORMED as error:
        raise ValueError(f"{path} is not the manifest of an encoded corpus: {error!r}") from error
    return manifest


def write_block(folder: Path, vectors: Vectors, ids: Sequence[str], manifest: Manifest, number: int) -> None:
    """Write a block of an encoded corpus: vectors, ids and the corpus to which it belongs.

    Args:
        folder: That of the corpus.
        vectors: CSR `[rows, V]` or array `[rows, D]`, float32.
        ids: One id per row.
        manifest: That of the corpus.
        number: Which block it is, counted from 0.
    """
    names = np.frombuffer(json.dumps(list(ids), ensure_ascii=False).encode(), np.uint8)
    write_vectors(_block_path(folder, number), vectors, f"{manifest.key} {number}", ids=names)


def _read_block(path: Path, manifest: Manifest, number: int) -> tuple[Vectors, list[str]]:
    """Return the vectors and ids of a block.

    Raises:
        ValueError: If the block is damaged or belongs to another corpus.
    """
    try:
        vectors, arrays = read_vectors(path, f"{manifest.key} {number}")
        ids = json.loads(arrays["ids"].tobytes())
        if len(ids) != vectors.shape[0]:
            raise ValueError(f"{len(ids)} ids for {vectors.shape[0]} vectors")
    except MALFORMED as error:
        raise ValueError(
            f"{path} is cut, altered, or of another corpus ({error}); delete it and encode again"
        ) from error
    return vectors, ids
