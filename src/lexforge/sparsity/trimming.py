"""The trimming of a finished model: documents get exactly the wanted mean number of active terms.

A term is active in a text if its largest logit over the tokens is above 0, so a level that is subtracted from
all logits decides how many terms a text has. It is found on a sample of documents and written into the bias
of the decoder. Source: docs/losses.md, section 19.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

from lexforge.common.ranks import from_first_rank
from lexforge.corpus import encode
from lexforge.models.decoder_bias import decoder_biases, lower_bias, raised_bias
from lexforge.models.structure import splade_decoders, vocabulary_size
from lexforge.sparsity.constants import FIRST_DEPTH, LARGEST_DEPTH
from lexforge.sparsity.sample import in_blocks, mean_active_terms

logger = logging.getLogger(__name__)


def trim_documents(
    model: SparseEncoder, documents: Sequence[str], document_terms: float, *, batch_size: int = 32
) -> float:
    """Shift the decoder's bias, in place, so that documents have the wanted mean number of active terms.

    All terms are shifted by the same level, which also changes how many terms queries have. Those that the
    output vocabulary is restricted to stay so. Documents that have fewer terms than wanted get more.

    Where there are several ranks, every rank must call this with equal models; the documents of the first
    one count.

    Args:
        model: A SPLADE encoder that `check_terms_of_model` accepts, fused or plain.
        documents: A sample of the documents; 3,000 tell the mean to about 1 %. All of them are encoded.
        document_terms: Wanted mean number of active terms per document, above 0.
        batch_size: Number of texts per forward pass.

    Returns:
        The mean number of active terms per document of the sample that the trimmed model has, with the bias
        as it is stored. A warning says where it is not the wanted one.

    Raises:
        ValueError: If the model cannot be trimmed, there is no document, or the wanted number cannot be
            reached.
    """
    check_terms_of_model(model, document_terms=document_terms)
    level, reached = from_first_rank(lambda: _level(model, documents, document_terms, batch_size))
    lower_bias(model, level)
    if decoder_biases(model)[0].dtype != torch.float32:  # bias and logits are rounded, and many are equal
        counted = from_first_rank(lambda: mean_active_terms(model, {"document": documents}, batch_size))
        reached = counted["document"]
    if abs(reached / document_terms - 1) > 0.01:
        logger.warning(
            "a document has %.1f active terms on average, and %g were wanted: near the level that would give "
            "them, logits are equal or few. Load the model in float32, or give more documents",
            reached,
            document_terms,
        )
    return reached


def check_terms_of_model(
    model: SparseEncoder, *, query_terms: float | None = None, document_terms: float | None = None
) -> None:
    """Refuse a wanted number of active terms that this model cannot have.

    Args:
        model: A SPLADE encoder.
        query_terms: Wanted mean number of active terms per query, or None.
        document_terms: The same for documents.

    Raises:
        ValueError: If a number does not lie between 0 and the size of the vocabulary, or the model has a
            limit of its own (`max_active_dims`); for queries, if the model looks them up; for documents, if
            it has several SPLADE heads or no bias in the decoder.
    """
    if query_terms is not None and any(
        isinstance(module, SparseStaticEmbedding) for module in model.modules()
    ):
        raise ValueError(
            "an inference-free model has no query encoder: a query has one active term per distinct token, "
            f"whatever is trained. Leave query_terms out; received query_terms={query_terms:g}"
        )
    if document_terms is not None:
        if len(splade_decoders(model)) > 1:
            raise ValueError(
                "a wanted number of document terms needs one SPLADE head for queries and documents; received "
                f"a model with {len(splade_decoders(model))}"
            )
        decoder_biases(model)  # raises an error where there is none
    if model.max_active_dims is not None:
        raise ValueError(
            "a wanted number of active terms and max_active_dims exclude each other; received a model with "
            f"max_active_dims={model.max_active_dims}"
        )
    for name, wanted in (("query_terms", query_terms), ("document_terms", document_terms)):
        if wanted is not None and not 0 < wanted < vocabulary_size(model):
            raise ValueError(
                f"{name} must lie between 0 and the {vocabulary_size(model)} terms of the vocabulary; "
                f"received {wanted:g}"
            )


def _level(
    model: SparseEncoder, documents: Sequence[str], wanted: float, batch_size: int
) -> tuple[float, float]:
    """The level above which documents have so many logits each, on average, and how many they have."""
    above = max(1, round(wanted * len(documents)))  # logits of all documents together
    depth = FIRST_DEPTH
    while True:
        logits = _largest_logits(model, documents, above + 1, depth, batch_size)
        if above < len(logits):
            # The middle between the last logit that counts and the first one that does not.
            level = float(np.partition(logits, (0, 1))[:2].mean())
            return level, int((logits > level).sum()) / len(documents)
        if depth >= LARGEST_DEPTH:
            raise ValueError(
                f"{len(documents)} documents have {len(logits)} logits in all; wanted are {wanted:g} per "
                "document"
            )
        depth *= 2


def _largest_logits(
    model: SparseEncoder, documents: Sequence[str], most: int, depth: float, batch_size: int
) -> NDArray[np.float64]:
    """Return the largest logits of terms in documents, at most so many, `[n]`, of those above -depth.

    A term has one logit per document, the largest over its tokens. Memory holds those of a part of the
    documents: once there are enough, the smallest of them is what others must exceed.
    """
    if not documents:
        raise ValueError("at least one document is needed to trim by; received none")
    largest: NDArray[np.float64] = np.empty(0)
    for part in in_blocks(model, documents):
        with raised_bias(model, depth):
            vectors = encode(model, part, "document", batch_size=batch_size)
        largest = np.concatenate([largest, _logits(model, vectors.data) - depth])
        if len(largest) > most:
            largest = np.partition(largest, -most)[-most:]
            depth = -float(largest.min())
    return largest


def _logits(model: SparseEncoder, activations: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the logits above 0 from which a model made its activations, `[n]` each."""
    pooling = next(module for module in model.modules() if isinstance(module, SpladePooling))
    values = np.expm1(activations.astype(np.float64))  # activations are log1p(relu(logit))
    if pooling.activation_function == "log1p_relu":  # log1p of the above once more
        values = np.expm1(values)
    return values
