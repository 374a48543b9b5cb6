"""Encode texts by a sentence-transformers model, and keep a corpus's vectors while the model is unchanged."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.model import BaseModel

from lexforge.common.progress import Progress
from lexforge.common.samples import evenly_spaced
from lexforge.common.text_identity import text_digest
from lexforge.common.types import TextKind, check_texts
from lexforge.corpus.token_batches import encode_by_tokens
from lexforge.corpus.vector_file import read_vectors, write_vectors
from lexforge.models.fingerprint import fingerprint
from lexforge.models.prompts import encode_kind
from lexforge.models.training_forward import multiplies_bfloat16
from lexforge.settings import EncodingPrecision, VectorType
from lexforge.storage.files import check_output_file, remove_leftovers

logger = logging.getLogger(__name__)

# Documents that are encoded before any is timed, because the first batch measures the head, and timed ones.
_WARM, TIMED = 8, 64
BATCHES_PER_BLOCK = 32  # batches per call of the model, after which the vectors leave the device
COUNTED_DOCUMENTS = 2000  # documents whose active terms are counted at most
_CACHED = r"[0-9a-f]{40}-[0-9a-f]{40}\.safetensors"  # the files of vectors in a cache folder

Vectors: TypeAlias = Any
"""CSR `[N, V] float32` from a SparseEncoder, or an array `[N, D] float32` from a SentenceTransformer."""


def vector_type(model: BaseModel) -> VectorType:
    """Return `sparse` for a SparseEncoder and `dense` for a SentenceTransformer.

    Raises:
        TypeError: If the model is neither.
    """
    if isinstance(model, SparseEncoder):
        return "sparse"
    if isinstance(model, SentenceTransformer):
        return "dense"
    raise TypeError(
        f"the model must be a SparseEncoder or a SentenceTransformer; received {type(model).__name__}"
    )


def encode(
    model: BaseModel,
    texts: Sequence[str],
    kind: TextKind,
    *,
    batch_size: int = 32,
    precision: EncodingPrecision = "fp32",
    show_progress_bar: bool = False,
) -> Vectors:
    """Encode texts in blocks of similar length, without a dense matrix of vocabulary width.

    A sparse encoder on a processor takes batches of like numbers of tokens (`encode_by_tokens`).

    Args:
        model: A SparseEncoder or a SentenceTransformer; its prompt or route for this kind of text is used.
        texts: At least one text.
        kind: Whether the texts are queries or documents.
        batch_size: Number of texts per forward pass.
        precision: `fp32` gives the vectors of `model.encode`. `bf16` computes the products in bfloat16 by
            autocast, which is faster on processors with instructions for it and on GPUs, and changes a vector
            by about one percent.
        show_progress_bar: Show one progress bar over all texts.

    Returns:
        CSR `[N, V] float32` from a SparseEncoder, or an array `[N, D] float32` from a SentenceTransformer;
        row i is the vector of `texts[i]`.

    Raises:
        TypeError: If the model is neither, or `texts` is a single string instead of a list.
        ValueError: If there is no text, the kind is unknown, `batch_size` is below 1, the processor has no
            instructions for the precision, or a vector is not finite.
    """
    check_texts(texts)
    texts = list(texts)  # also of an array or a column of a table, which have no truth value as a list has
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; received {batch_size}")
    is_sparse = vector_type(model) == "sparse"
    check_precision(precision, model.device)
    if not texts:
        raise ValueError(f"at least one {kind} is needed to encode; received none")
    encoder = cast("SparseEncoder | SentenceTransformer", model)  # `vector_type` has checked it
    # The longest texts come first: texts of similar length need little padding, and a batch that does not fit
    # into memory fails at once.
    by_length = np.argsort([-len(text) for text in texts], kind="stable")
    order: list[int] = []  # the place of each encoded text
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "show_progress_bar": False,
        "convert_to_tensor": True,
    }
    if is_sparse:
        options |= {"convert_to_sparse_tensor": True, "save_to_cpu": True}
    rows: list[Vectors] = []
    narrow: AbstractContextManager[Any] = nullcontext()  # which leaves an autocast of the caller as it is
    if precision == "bf16":
        narrow = torch.autocast(model.device.type, torch.bfloat16)
    with Progress(len(texts), f"Encode {kind}", "texts", show=show_progress_bar) as progress:
        for start in range(0, len(texts), batch_size * BATCHES_PER_BLOCK):
            places = by_length[start : start + batch_size * BATCHES_PER_BLOCK]
            part = [texts[i] for i in places]
            with narrow:
                batched = None
                if isinstance(encoder, SparseEncoder):
                    batched = encode_by_tokens(encoder, part, kind, batch_size)
                if batched is None:
                    embeddings = encode_kind(encoder, part, kind, **options)
                else:
                    embeddings, encoded = batched
                    places, part = places[encoded], [part[i] for i in encoded]
            rows.append(_to_csr(embeddings) if is_sparse else embeddings.float().cpu().numpy())
            order += places.tolist()
            # Checked block by block: otherwise a damaged model would encode a whole corpus before an index
            # refuses its vectors.
            _check_finite(encoder, rows[-1], part, kind)
            progress.update(len(part))
    return join_vectors(rows)[np.argsort(order)]


def encoding_speed(
    model: BaseModel,
    texts: Collection[str],
    *,
    most: int = TIMED,
    batch_size: int = 32,
    precision: EncodingPrecision = "fp32",
) -> tuple[float, Vectors]:
    """Measure how fast a model encodes documents, by some of them that are evenly spaced.

    Args:
        model: A SparseEncoder or a SentenceTransformer.
        texts: All documents, at least one.
        most: Number of documents that are timed at most.
        batch_size: Texts per forward pass.
        precision: As of `encode`.

    Returns:
        Documents per second, and the vectors of those that were timed.
    """
    places = set(evenly_spaced(len(texts), most))
    some = [text for place, text in enumerate(texts) if place in places]
    encode(model, some[:_WARM], "document", batch_size=batch_size, precision=precision)
    start = time.perf_counter()
    vectors = encode(model, some, "document", batch_size=batch_size, precision=precision)
    return len(some) / (time.perf_counter() - start), vectors


def active_document_frequency(
    model: SparseEncoder, documents: Sequence[str]
) -> tuple[NDArray[np.int64], int]:
    """Count in how many documents each term is active, over evenly spaced documents of the collection.

    Args:
        model: A SPLADE encoder.
        documents: The collection, one text per document; at least one. At most `COUNTED_DOCUMENTS` are
            encoded.

    Returns:
        `[V]` int64 and the number of documents that were encoded.

    Raises:
        ValueError: If there is no document.
    """
    places = evenly_spaced(len(documents), COUNTED_DOCUMENTS)
    vectors = encode(model, [documents[place] for place in places], "document")  # CSR [sample, V]
    # A stored entry of a SPLADE vector is above 0, so the entries of a column count its documents.
    return np.bincount(vectors.indices, minlength=vectors.shape[1]).astype(np.int64), len(places)


def check_precision(precision: EncodingPrecision, device: torch.device) -> None:
    """Refuse a precision that is unknown, or whose products a processor would have to emulate.

    Raises:
        ValueError: If it is.
    """
    if precision not in get_args(EncodingPrecision):
        raise ValueError(f"precision must be one of {get_args(EncodingPrecision)}; received {precision!r}")
    if precision == "bf16" and device.type == "cpu" and not multiplies_bfloat16():
        raise ValueError(
            "this processor has no instructions for bfloat16, so bf16 would be slower than fp32; received "
            "the precision bf16"
        )


def join_vectors(parts: Sequence[Vectors]) -> Vectors:
    """Return the rows of all parts as one matrix.

    Args:
        parts: At least one part, all CSR `[n, V]` or all arrays `[n, D]`, of equal width.

    Returns:
        CSR `[N, V]` or an array `[N, D]`.
    """
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return sparse.csr_array(sparse.vstack(parts, format="csr"))


def _check_finite(encoder: torch.nn.Module, vectors: Vectors, texts: Sequence[str], kind: str) -> None:
    """Refuse vectors that are not finite.

    Args:
        encoder: The model that made them.
        vectors: CSR `[n, V]` or an array `[n, D]`.
        texts: The n texts.
        kind: `query` or `document`, for the message.

    Raises:
        ValueError: If a value is NaN or infinite; the message names the text, and a weight if one is broken.
    """
    values = vectors if isinstance(vectors, np.ndarray) else vectors.data  # [n, D], or the stored weights
    if np.isfinite(values).all():
        return
    wrong = np.argwhere(~np.isfinite(values))[0, 0]
    if not isinstance(vectors, np.ndarray):  # from the place of the weight to its row
        wrong = np.searchsorted(vectors.indptr, wrong, side="right") - 1
    weights = encoder.named_parameters()
    broken = next((name for name, weight in weights if not torch.isfinite(weight).all()), None)
    raise ValueError(
        f"a vector must be finite; the model gives NaN or infinity for the {kind} {texts[wrong][:60]!r}"
        + (f", because its weight {broken} holds NaN or infinity" if broken else "")
    )


def _to_csr(embeddings: torch.Tensor) -> sparse.csr_array:
    """Convert a sparse COO tensor `[n, V]` to CSR `[n, V] float32`."""
    entries = embeddings.coalesce()
    rows, columns = entries.indices().numpy()  # each [stored weights]
    height, width = entries.shape
    return sparse.csr_array((entries.values().float().numpy(), (rows, columns)), shape=(height, width))


class CorpusEncoder:
    """Encodes one corpus; keeps the vectors of the last model in memory and, if wanted, all in a folder.

    Two models are the same if their class, modules, configuration, tokenizer, settings, prompts and all
    weights are equal.

    Args:
        texts: The texts of the documents.
        batch_size: Number of texts per forward pass.
        cache_dir: A folder for files of vectors, one file per model and corpus; None writes no file.
    """

    def __init__(self, texts: list[str], batch_size: int, cache_dir: str | Path | None = None) -> None:
        self._texts = texts
        self._batch_size = batch_size
        self._cache_dir = None if cache_dir is None else Path(cache_dir)
        self._corpus_key = text_digest(texts)
        self._kept: tuple[str, Vectors] | None = None

    def encode(self, model: BaseModel, show_progress_bar: bool = False) -> tuple[Vectors, bool]:
        """Return the vectors of the corpus, and whether they were encoded now.

        Args:
            model: The encoder.
            show_progress_bar: Show a progress bar while encoding.

        Returns:
            The vectors, as the function `encode` returns them, and True if they were encoded now, False if
            they were kept from an earlier call.

        Raises:
            OSError: If no file can be written in the cache folder. Where that of the vectors does not fit on
                the disk, a warning says so.
            ValueError: If the cached file is damaged.
        """
        texts = self._corpus_key
        if torch.is_autocast_enabled(model.device.type):  # by the caller, which gives other vectors
            texts = text_digest([texts, str(torch.get_autocast_dtype(model.device.type))])
        key = f"{fingerprint(model)}-{texts}"
        if self._kept is not None and self._kept[0] == key:
            return self._kept[1], False
        path = None if self._cache_dir is None else self._cache_dir / f"{key}.safetensors"
        vectors = None
        if path is not None and path.exists():
            try:
                vectors = read_vectors(path, key)[0]
            except ValueError as error:
                raise ValueError(
                    f"cached vectors {path} cannot be read ({error}); delete the file"
                ) from error
        fresh = vectors is None
        if fresh:
            if path is not None:  # before the long work, so that a folder that takes no file fails at once
                path.parent.mkdir(parents=True, exist_ok=True)
                check_output_file(path)
            vectors = encode(
                model,
                self._texts,
                "document",
                batch_size=self._batch_size,
                show_progress_bar=show_progress_bar,
            )
            if path is not None:
                try:
                    remove_leftovers(path.parent, _CACHED)
                    write_vectors(path, vectors, key)
                except OSError as error:  # the vectors themselves are worth more than their file
                    logger.warning("the vectors of the corpus are in no file for later processes: %s", error)
        self._kept = (key, vectors)
        return vectors, fresh
