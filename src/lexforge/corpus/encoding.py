"""Texts to vectors by a sentence-transformers model; a corpus's vectors kept while the model is unchanged."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.model import BaseModel

from lexforge.common.files import remove_leftovers, write_file
from lexforge.common.progress import Progress
from lexforge.corpus.vector_file import pack, unpack
from lexforge.models.fingerprint import fingerprint, text_digest

BATCHES_PER_BLOCK = 32
# no other file of the folder is ever deleted
_CACHED = re.compile(r"[0-9a-f]{40}-[0-9a-f]{40}\.safetensors")

Vectors: TypeAlias = Any  # CSR [N, V] of a SparseEncoder, float32 array [N, D] of a SentenceTransformer


def encode(
    model: BaseModel,
    texts: Sequence[str],
    kind: Literal["query", "document"],
    *,
    batch_size: int = 32,
    show_progress_bar: bool = False,
) -> Vectors:
    """The vectors of texts, in blocks of similar length; never a dense matrix of vocabulary width.

    Args:
        model: Its `encode_query` or `encode_document` is called.
        texts: At least one.
        kind: What the texts are.
        batch_size: Texts a forward pass.
        show_progress_bar: Show one bar over all texts.

    Returns:
        For a `SparseEncoder` CSR `[N, V] float32`, else an array `[N, D] float32`; rows as `texts`.

    Raises:
        ValueError: No text.
    """
    if not isinstance(model, SparseEncoder | SentenceTransformer):
        raise TypeError(
            f"the model is a {type(model).__name__}, neither SparseEncoder nor SentenceTransformer"
        )
    if not texts:
        raise ValueError(f"no {kind} to encode")
    encode_block: Callable[..., Any] = model.encode_query if kind == "query" else model.encode_document
    order = np.argsort([-len(text) for text in texts], kind="stable")
    back = np.argsort(order)
    options: dict[str, Any] = {"batch_size": batch_size, "show_progress_bar": False}
    options |= {"convert_to_tensor": True}
    if isinstance(model, SparseEncoder):
        options |= {"convert_to_sparse_tensor": True, "save_to_cpu": True}
    to_rows: Callable[..., Vectors] = _to_csr if isinstance(model, SparseEncoder) else _to_array
    rows: list[Vectors] = []
    with Progress(len(texts), f"Encode {kind}", "texts", show=show_progress_bar) as progress:
        for start in range(0, len(texts), batch_size * BATCHES_PER_BLOCK):
            part = [texts[i] for i in order[start : start + batch_size * BATCHES_PER_BLOCK]]
            rows.append(to_rows(encode_block(part, **options)))
            progress.update(len(part))
    if isinstance(model, SparseEncoder):
        return sparse.csr_array(sparse.vstack(rows, format="csr"))[back]
    return np.concatenate(rows)[back]


def _to_csr(embeddings: torch.Tensor) -> sparse.csr_array:
    entries = embeddings.coalesce()
    rows, columns = entries.indices().numpy()
    height, width = entries.shape
    return sparse.csr_array((entries.values().float().numpy(), (rows, columns)), shape=(height, width))


def _to_array(embeddings: torch.Tensor) -> NDArray[np.float32]:
    return embeddings.float().cpu().numpy()


class CorpusEncoder:
    """Encodes one corpus; the vectors of the last model stay in memory, those of others in `cache_dir`.

    A model is the same when its class, modules, configuration, tokenizer, settings, prompts and every weight
    are.

    Args:
        texts: The documents.
        batch_size: Texts a forward pass.
        cache_dir: A folder for vectors, one file a model and corpus; None for none.
        cache_bytes: Bytes of such files that the folder may hold: the ones unused for longest are deleted
            when another is written, whose own size is not limited.

    Raises:
        ValueError: `cache_bytes` below 0.
    """

    def __init__(
        self,
        texts: list[str],
        batch_size: int,
        cache_dir: str | Path | None = None,
        cache_bytes: int = 10_000_000_000,
    ) -> None:
        if cache_bytes < 0:
            raise ValueError(f"cache_bytes must be at least 0, got {cache_bytes}")
        self._texts = texts
        self._batch_size = batch_size
        self._cache_bytes = cache_bytes
        self._cache_dir = None if cache_dir is None else Path(cache_dir)
        self._corpus_key = text_digest(texts)
        self._kept: tuple[str, Vectors] | None = None

    def encode(self, model: BaseModel, show_progress_bar: bool = False) -> tuple[Vectors, bool]:
        """The vectors of the corpus, and whether they were encoded now (else they were kept).

        Args:
            model: The encoder.
            show_progress_bar: Show a bar while encoding.

        Returns:
            The vectors, as from the function `encode`, and the flag.

        Raises:
            ValueError: The cached file is damaged.
        """
        key = f"{fingerprint(model)}-{self._corpus_key}"
        if self._kept is not None and self._kept[0] == key:
            return self._kept[1], False
        path = None if self._cache_dir is None else self._cache_dir / f"{key}.safetensors"
        vectors = None if path is None else _read(path, key)
        fresh = vectors is None
        if fresh:
            vectors = encode(
                model,
                self._texts,
                "document",
                batch_size=self._batch_size,
                show_progress_bar=show_progress_bar,
            )
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                remove_leftovers(path.parent, _CACHED.pattern)
                write_file(path, pack(vectors, key))
                _delete_oldest(path, self._cache_bytes)
        self._kept = (key, vectors)
        return vectors, fresh


def _read(path: Path, key: str) -> Vectors | None:
    """Cached vectors; None where there are none, or another process deletes them now for the room."""
    try:
        os.utime(path)  # the file used last is deleted last
        return unpack(path, key)[0]
    except FileNotFoundError:
        return None
    except ValueError as error:
        if not path.exists():
            return None
        raise ValueError(f"cached vectors {path} cannot be read ({error}); delete the file") from error


def _delete_oldest(newest: Path, limit: int) -> None:
    """Keep the folder of cached vectors below a number of bytes, and the newest file in any case."""
    files = []
    for path in newest.parent.glob("*.safetensors"):
        with suppress(FileNotFoundError):  # another process deletes, too
            if _CACHED.fullmatch(path.name):
                files.append((path.stat(), path))
    total = sum(status.st_size for status, _ in files)
    for status, path in sorted(files, key=lambda entry: entry[0].st_mtime_ns):
        if total <= limit:
            return
        if path != newest:
            path.unlink(missing_ok=True)
            total -= status.st_size
