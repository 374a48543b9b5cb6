"""The trimming of a finished model: documents get exactly the wanted mean number of active terms.

A term is active in a text if its largest logit over the tokens is above 0, so a level that is subtracted from
all logits decides how many terms a text has. It is found on a sample of documents and written into the bias
of the decoder. Source: docs/losses.md, section 19.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

from lexforge.common.evaluation_mode import evaluation_mode
from lexforge.common.progress import Progress
from lexforge.common.ranks import from_first_rank
from lexforge.corpus import encode
from lexforge.models.decoder_bias import decoder_biases, lower_bias, raised_bias
from lexforge.models.head_scale import can_scale_logits, scale_logits
from lexforge.models.structure import module_sequences, splade_decoders, vocabulary_size
from lexforge.sparsity.constants import (
    FIRST_DEPTH,
    LARGEST_DEPTH,
    LARGEST_SCALE,
    SCALE_EXPONENT,
)
from lexforge.sparsity.sample import in_blocks, mean_active_terms

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DocumentLevels:
    """The levels at which documents of a sample have wanted mean numbers of active terms.

    Args:
        before: Mean number of active terms per document of the model as it is.
        levels: Wanted number -> the level that is subtracted from all logits; below 0 where documents get
            more terms.
        reached: Wanted number -> mean number of active terms per document at that level.
        scales: Wanted number -> what the logits are multiplied by after the level, by `scale_after`; 1 where
            the model has no place for a scale.
    """

    before: float
    levels: dict[float, float]
    reached: dict[float, float]
    scales: dict[float, int]


def scale_after(level: float) -> int:
    """Return what the logits are multiplied by after a level was subtracted from them.

    A level leaves little of every logit, so that the strongest terms of a text outweigh all others. A larger
    scale makes the activations, which grow with the logarithm, more alike, as they were before.

    Args:
        level: The level.

    Returns:
        The power of two that is nearest to level^`SCALE_EXPONENT`, from 1 to `LARGEST_SCALE`.

    Source: docs/losses.md, section 19.
    """
    return min(LARGEST_SCALE, 2 ** round(SCALE_EXPONENT * math.log2(max(1.0, level))))


def trim_documents(
    model: SparseEncoder,
    documents: Sequence[str],
    document_terms: float,
    *,
    scaled: bool = True,
    batch_size: int = 32,
) -> float:
    """Shift the decoder's bias, in place, so that documents have the wanted mean number of active terms.

    All terms are shifted by the same level, which also changes how many terms queries have. Those that the
    output vocabulary is restricted to stay so. Documents that have fewer terms than wanted get more. Where
    the model keeps at most `max_active_dims` terms of a text, the mean is that with this limit in force. The
    logits that are left are multiplied by `scale_after` the level.

    Where there are several ranks, every rank must call this with equal models; the documents of the first
    one count.

    Args:
        model: A SPLADE encoder that `check_trimming` accepts, fused or plain.
        documents: A sample of the documents; 3,000 tell the mean to about 1 %. All of them are encoded.
        document_terms: Wanted mean number of active terms per document, above 0.
        scaled: Whether the logits are multiplied by `scale_after` the level. A model that was trained for the
            number has learned its scale.
        batch_size: Number of texts per forward pass.

    Returns:
        The mean number of active terms per document of the sample that the trimmed model has, with the bias
        as it is stored. A warning says where it is not the wanted one.

    Raises:
        ValueError: If the model cannot be trimmed, there is no document, or the wanted number cannot be
            reached.
    """
    check_trimming(model, document_terms)
    levels = from_first_rank(
        lambda: document_levels(model, documents, [document_terms], batch_size=batch_size)
    )
    return lower_to_level(model, documents, levels, document_terms, scaled=scaled, batch_size=batch_size)


def document_levels(
    model: SparseEncoder,
    documents: Sequence[str],
    wanted: Sequence[float],
    *,
    batch_size: int = 32,
) -> DocumentLevels:
    """Find the levels at which documents have several wanted mean numbers of active terms.

    The documents are encoded once, and again where they are to have more terms than the model gives them.

    Args:
        model: A SPLADE encoder that `check_trimming` accepts, fused or plain. It is not changed.
        documents: A sample of the documents, at least one.
        wanted: The mean numbers of active terms per document, at least one.
        batch_size: Number of texts per forward pass.

    Returns:
        The level of each number, and what it reaches.

    Raises:
        ValueError: If the model cannot be trimmed to a number, or there is no document.
    """
    if not documents:
        raise ValueError("at least one document is needed to trim by; received none")
    for number in wanted:
        check_trimming(model, number)
    # Logits of all documents together that lie above the level of a number.
    above = {number: max(1, round(number * len(documents))) for number in wanted}
    most = max(above.values()) + 1
    depth = 0.0  # a model has few logits above 0, and thousands above -2
    while True:
        largest, active = _largest_logits(model, documents, most, depth, batch_size)
        if len(largest) == most:
            break
        if depth >= LARGEST_DEPTH:
            raise ValueError(
                f"{len(documents)} documents have {len(largest)} logits in all; wanted are {max(wanted):g} "
                "per document"
            )
        depth = max(FIRST_DEPTH, 4 * depth)
    descending = np.sort(largest)[::-1]
    # The middle between the last logit that counts and the first one that does not.
    levels = {number: float(descending[n - 1 : n + 1].mean()) for number, n in above.items()}
    reached = {number: int((largest > level).sum()) / len(documents) for number, level in levels.items()}
    scales = {number: scale_after(level) for number, level in levels.items()}
    if max(scales.values()) > 1 and not can_scale_logits(model, documents[0]):
        scales = dict.fromkeys(levels, 1)
    return DocumentLevels(active / len(documents), levels, reached, scales)


def lower_to_level(
    model: SparseEncoder,
    documents: Sequence[str],
    levels: DocumentLevels,
    document_terms: float,
    *,
    scaled: bool = True,
    batch_size: int = 32,
) -> float:
    """Lower the logits of all terms, in place, to the level of one of the numbers that levels were found for.

    Args:
        model: The model that the levels were found with.
        documents: The sample that they were found on; the first rank encodes it again where the model is not
            in float32.
        levels: What `document_levels` returned.
        document_terms: One of its numbers.
        scaled: As for `trim_documents`.
        batch_size: Number of texts per forward pass.

    Returns:
        What `trim_documents` returns.
    """
    lower_bias(model, levels.levels[document_terms])
    if scaled and levels.scales[document_terms] > 1:
        scale_logits(model, levels.scales[document_terms], documents[0])
    reached = levels.reached[document_terms]
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


def check_trimming(model: SparseEncoder, document_terms: float) -> None:
    """Refuse a wanted number of active terms to which the documents of this model cannot be trimmed.

    Args:
        model: A SPLADE encoder.
        document_terms: Wanted mean number of active terms per document.

    Raises:
        ValueError: If the number does not lie between 0 and the size of the vocabulary, and below the model's
            `max_active_dims` if it has one; or if the model has several SPLADE heads, no bias in the decoder,
            a pooling other than the maximum, or a module behind the head that changes its activations.
    """
    _check_head(model)
    _check_number(model, "document_terms", document_terms)
    limit = model.max_active_dims
    if limit is not None and not document_terms < limit:
        raise ValueError(
            f"document_terms must lie below the model's max_active_dims={limit}: no text has more terms than "
            f"that, so their mean can be reached by fewer only; received {document_terms:g}"
        )


def check_terms_of_model(
    model: SparseEncoder, *, query_terms: float | None = None, document_terms: float | None = None
) -> None:
    """Refuse a wanted number of active terms that this model cannot be trained for.

    Args:
        model: A SPLADE encoder.
        query_terms: Wanted mean number of active terms per query; None wants none.
        document_terms: The same for documents.

    Raises:
        ValueError: If a number does not lie between 0 and the size of the vocabulary, or the model has a
            limit of its own (`max_active_dims`); for queries, if the model looks them up; for documents, if
            `check_trimming` refuses the model.
    """
    if query_terms is not None and looks_up_queries(model):
        raise ValueError(
            "an inference-free model has no query encoder: a query has one active term per distinct token, "
            f"whatever is trained. Leave query_terms out; received query_terms={query_terms:g}"
        )
    if document_terms is not None:
        _check_head(model)
    given = {"query_terms": query_terms, "document_terms": document_terms}
    wanted = {name: number for name, number in given.items() if number is not None}
    if wanted and model.max_active_dims is not None:
        raise ValueError(
            "training brings no model with max_active_dims to a wanted number of active terms; received a "
            f"model with max_active_dims={model.max_active_dims}. Lift the limit before "
            "(model.max_active_dims = None, and save the model), and set it again on the trained model by "
            f"`lexforge trim --max-active-dims {model.max_active_dims}`"
        )
    for name, number in wanted.items():
        _check_number(model, name, number)


def looks_up_queries(model: SparseEncoder) -> bool:
    """Say whether a model is inference-free: no level changes the vectors of its queries.

    Args:
        model: A SPLADE encoder.

    Returns:
        Whether it looks the weights of a query's tokens up in a table.
    """
    return any(isinstance(module, SparseStaticEmbedding) for module in model.modules())


def logits_of(
    model: SparseEncoder, activations: NDArray[np.float32], height: float = 0.0
) -> NDArray[np.float64]:
    """Return the logits from which a model made its activations.

    Args:
        model: A SPLADE encoder.
        activations: `[n]`, above 0.
        height: How much higher its bias was than its own, >= 0.

    Returns:
        `[n]`, above -height and with its own bias, in float64, so that a level between two logits stays
        between them. A logit that rounding alone tells from 0 is 0: a padding token without weights has that
        logit in every text, and counts as no term.
    """
    values = np.expm1(activations.astype(np.float64))  # activations are log1p(relu(logit))
    if _takes_log_twice(model):
        values = np.expm1(values)
    values -= height
    if height:
        # The rounding of an activation, times the derivative of the logit by it, at a logit of 0.
        rounding = 4 * float(np.finfo(np.float32).eps) * (1 + height) * (1 + np.log1p(height))
        values[np.abs(values) <= rounding] = 0.0
    return values


def activations_of(model: SparseEncoder, logits: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the activations that a model makes of logits above 0.

    Args:
        model: A SPLADE encoder.
        logits: `[n]`, above 0.

    Returns:
        `[n]`.
    """
    values = np.log1p(logits)
    return (np.log1p(values) if _takes_log_twice(model) else values).astype(np.float32)


def _check_head(model: SparseEncoder) -> None:
    """Refuse a model without one head whose bias decides the terms of a document."""
    if len(splade_decoders(model)) > 1:
        raise ValueError(
            "a wanted number of document terms needs one SPLADE head for queries and documents; received "
            f"a model with {len(splade_decoders(model))}"
        )
    decoder_biases(model)  # raises an error where there is none
    for modules in module_sequences(model):
        if any(isinstance(module, SpladePooling) for module in modules[:-1]):
            raise ValueError(
                "a wanted number of document terms needs SpladePooling as the last module, because the level "
                f"is found by its activations; received {type(modules[-1]).__name__} as the last one"
            )
        pooling = modules[-1]
        if isinstance(pooling, SpladePooling) and pooling.pooling_strategy != "max":
            raise ValueError(
                "a wanted number of document terms needs SpladePooling('max'), because a sum over the tokens "
                f"does not tell the largest logit; received {pooling.pooling_strategy!r}"
            )


def _check_number(model: SparseEncoder, name: str, wanted: float) -> None:
    if not 0 < wanted < vocabulary_size(model):
        raise ValueError(
            f"{name} must lie between 0 and the {vocabulary_size(model)} terms of the vocabulary; "
            f"received {wanted:g}"
        )


def _largest_logits(
    model: SparseEncoder, documents: Sequence[str], most: int, depth: float, batch_size: int
) -> tuple[NDArray[np.float64], int]:
    """Return the largest logits of terms in documents, `[n]`, and how many of all logits are above 0.

    At most `most` are returned, of those above -depth. A term has one logit per document, the largest over
    its tokens. Memory holds those of a part of the documents: once there are enough, the smallest of them is
    what others must exceed.
    """
    largest: NDArray[np.float64] = np.empty(0)
    active = 0
    with evaluation_mode(model), Progress(len(documents), "Count terms", "documents") as progress:
        for part in in_blocks(model, documents):
            with raised_bias(model, depth):
                vectors = encode(model, part, "document", batch_size=batch_size)
            logits = logits_of(model, vectors.data, depth)
            active += int((logits > 0).sum())
            largest = np.concatenate([largest, logits])
            if len(largest) > most:
                largest = np.partition(largest, -most)[-most:]
                depth = max(0.0, -float(largest.min()))  # those above 0 are counted
            del vectors, logits  # before the next part is encoded
            progress.update(len(part))
    return largest, active


def _takes_log_twice(model: SparseEncoder) -> bool:
    pooling = next(module for module in model.modules() if isinstance(module, SpladePooling))
    return pooling.activation_function == "log1p_relu"
