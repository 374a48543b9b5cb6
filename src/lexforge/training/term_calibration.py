"""The calibration: a sample of texts tells how to shift the bias for a wanted mean number of active terms.

A bias of the decoder decides which logits count: term j is active in a text if its largest logit over the
tokens, bias included, is above 0. So a shift of the bias moves the threshold of each term, and it is saved,
loaded and exported with the weights. `lexforge.training.term_thresholds` finds the thresholds. Source:
docs/losses.md, section 19.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from torch import Tensor

from lexforge.common.ranks import first_gathered_row, world_size
from lexforge.common.types import TextKind
from lexforge.corpus import encode
from lexforge.models.structure import splade_decoders, splade_transformers, vocabulary_size
from lexforge.models.vocabulary import BANNED_BIAS
from lexforge.training.term_sample import mean_active_terms, sample_texts
from lexforge.training.term_thresholds import Logits, TooShallowError, solve_thresholds

logger = logging.getLogger(__name__)

FIRST_DEPTH, LARGEST_DEPTH = 1.0, 64.0  # how far below the threshold logits are looked at
COSTLY = 2.0  # FLOPS this many times as high as more query terms alone explain are told in a warning


def calibrate_active_terms(
    model: SparseEncoder,
    queries: Sequence[str],
    documents: Sequence[str],
    *,
    query_terms: float | None = None,
    document_terms: float | None = None,
    batch_size: int = 32,
) -> dict[TextKind, float]:
    """Shift the decoder's bias, in place, so that texts have the wanted mean numbers of active terms.

    The terms that the output vocabulary is restricted to stay so. If only one number is wanted, t1 is 0.

    Args:
        model: A SPLADE encoder that `check_can_calibrate` accepts, fused or plain.
        queries: The sample of queries; read if `query_terms` is given.
        documents: The sample of documents; read if `document_terms` is given.
        query_terms: Wanted mean number of active terms per query, above 0; None wants nothing.
        document_terms: The same for documents.
        batch_size: Number of texts per forward pass.

    Returns:
        The mean number of active terms that texts like those of the sample now have, by the wanted kind of
        text, with the bias as it is rounded to its dtype. A warning says where no shift gives the wanted one.

    Raises:
        ValueError: If no number is wanted, the model cannot be calibrated, a sample is empty, or a wanted
            number cannot be reached.
    """
    check_can_calibrate(model, query_terms=query_terms, document_terms=document_terms)
    decoder = splade_decoders(model)[0]
    samples: dict[TextKind, tuple[Sequence[str], float]] = {}
    if query_terms is not None:
        samples["query"] = (queries, query_terms)
    if document_terms is not None:
        samples["document"] = (documents, document_terms)
    if not samples:
        raise ValueError("query_terms or document_terms must be given; received None for both")

    size, depth = len(decoder.bias), FIRST_DEPTH
    while True:
        with _raised(decoder.bias, depth):
            logits = {
                kind: _logits(model, texts, kind, depth, batch_size) for kind, (texts, _) in samples.items()
            }
        try:
            reached: dict[TextKind, float]
            if len(samples) == 2:
                found = solve_thresholds(
                    logits["query"],
                    logits["document"],
                    samples["query"][1],
                    samples["document"][1],
                    size,
                )
                thresholds, lowest = found.thresholds, found.lowest
                reached = {"query": found.query_terms, "document": found.document_terms}
            else:
                ((kind, (_, wanted)),) = samples.items()
                thresholds = np.full(size, logits[kind].level(wanted, np.zeros(size)))
                lowest = float(thresholds.min())
                reached = {kind: logits[kind].mean_active(thresholds)}
            # A threshold below the depth would let terms in that were not seen.
            if lowest >= -depth:
                break
        except TooShallowError:
            if depth >= LARGEST_DEPTH:
                raise
        if depth >= LARGEST_DEPTH:
            raise TooShallowError(f"a threshold of {lowest:g} lies below a depth of {depth:g}")
        depth *= 2

    with torch.no_grad():
        shift = torch.from_numpy(-thresholds).to(decoder.bias)  # [V]
        decoder.bias += torch.where(decoder.bias > BANNED_BIAS / 2, shift, 0.0)
    had: dict[TextKind, float] = {}
    if torch.finfo(decoder.bias.dtype).bits < 32:
        # Half precision rounds the shift, and the logits above a raised bias: only a count tells the number.
        had = mean_active_terms(model, {kind: texts for kind, (texts, _) in samples.items()}, batch_size)
    for kind, (_, wanted) in samples.items():
        missed = abs(reached[kind] / wanted - 1) > 0.01  # by the shift itself, not by its rounding
        if kind in had:
            reached[kind] += had[kind] - logits[kind].mean_active(thresholds)
        if missed:
            logger.warning(
                "a %s has %.1f active terms on average, and %g were wanted: no shift of the decoder's bias "
                "gives both numbers. Train longer, or bring the two wanted numbers nearer to each other",
                kind,
                reached[kind],
                wanted,
            )
    if len(samples) == 2:
        _warn_of_cost(logits["query"], logits["document"], thresholds, samples["document"][1])
    return reached


def _warn_of_cost(
    queries: Logits, documents: Logits, thresholds: NDArray[np.float64], document_terms: float
) -> None:
    """Say so where the number of query terms is only had by terms that nearly every text activates."""
    alone = np.full(len(thresholds), documents.level(document_terms, np.zeros(len(thresholds))))
    flops, flops_alone = (float(queries.rates(cut) @ documents.rates(cut)) for cut in (thresholds, alone))
    terms, terms_alone = queries.mean_active(thresholds), queries.mean_active(alone)
    if flops * terms_alone > COSTLY * flops_alone * terms:
        logger.warning(
            "%.1f active terms per query make a search expensive: the FLOPS of the sample are %.2f. With the "
            "documents calibrated alone a query has %.1f terms, and the FLOPS are %.2f. Ask for a number of "
            "query_terms nearer to that, or for none",
            terms,
            flops,
            terms_alone,
            flops_alone,
        )


def calibrate_on_samples(
    model: SparseEncoder,
    rows: Any,
    label_columns: Sequence[str] = (),
    *,
    texts: Mapping[TextKind, Sequence[str]] | None = None,
    query_terms: float | None,
    document_terms: float | None,
    batch_size: int,
    seed: int,
) -> dict[TextKind, float]:
    """Calibrate on a sample of texts; every rank must call this.

    Rank 0 computes the shift and sends it to the others, so that the model stays equal on all ranks.

    Args:
        model: As in `calibrate_active_terms`, equal on all ranks.
        rows: Training rows, as in `sample_texts`.
        label_columns: The names of labels, which are no texts.
        texts: Queries and documents to take a sample from, as in `sample_texts`; read only on rank 0.
        query_terms: As in `calibrate_active_terms`.
        document_terms: As in `calibrate_active_terms`.
        batch_size: Number of texts per forward pass.
        seed: Seed of the sample.

    Returns:
        As `calibrate_active_terms`; empty on the other ranks.

    Raises:
        ValueError: As `calibrate_active_terms`.
    """
    reached: dict[TextKind, float] = {}
    if first_gathered_row(1) == 0:
        sample = sample_texts(texts or {}, rows, label_columns, seed=seed)
        reached = calibrate_active_terms(
            model,
            sample["query"],
            sample["document"],
            query_terms=query_terms,
            document_terms=document_terms,
            batch_size=batch_size,
        )
    if world_size() > 1:
        bias = splade_decoders(model)[0].bias
        dist.broadcast(bias.detach(), src=0)
    return reached


def check_can_calibrate(
    model: SparseEncoder, *, query_terms: float | None = None, document_terms: float | None = None
) -> None:
    """Refuse a model, or a wanted number of active terms, that a shift of the decoder's bias cannot set.

    Args:
        model: A SPLADE encoder.
        query_terms: Wanted mean number of active terms per query, or None.
        document_terms: The same for documents.

    Raises:
        ValueError: If the model looks its queries up and a number of query terms is wanted, if it has several
            SPLADE heads, no bias in the decoder, or a limit of its own (`max_active_dims`), or if a number
            does not lie between 0 and the size of the vocabulary.
    """
    if query_terms is not None and any(
        isinstance(module, SparseStaticEmbedding) for module in model.modules()
    ):
        raise ValueError(
            "an inference-free model has no query encoder: a query has one active term per distinct token, "
            f"whatever is trained. Leave query_terms out; received query_terms={query_terms:g}"
        )
    transformers = splade_transformers(model)
    if len(transformers) > 1:
        raise ValueError(
            "a wanted number of active terms needs one SPLADE head for queries and documents; received a "
            f"model with {len(transformers)}"
        )
    if getattr(splade_decoders(model)[0], "bias", None) is None:
        raise ValueError(
            "the decoder of this masked language model has no bias that could be shifted (for ModernBERT, "
            "load it with decoder_bias=True)"
        )
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


@contextmanager
def _raised(bias: Tensor, depth: float) -> Iterator[None]:
    """A block in which the bias is higher, so that logits below the threshold are seen."""
    before = bias.detach().clone()
    with torch.no_grad():
        bias += depth
    try:
        yield
    finally:
        with torch.no_grad():
            bias.copy_(before)


def _logits(
    model: SparseEncoder, texts: Sequence[str], kind: TextKind, depth: float, batch_size: int
) -> Logits:
    """Read the logits of texts out of their activations; the bias of the model is raised by the depth."""
    rows = encode(model, texts, kind, batch_size=batch_size)  # CSR [N, V]
    pooling = next(module for module in model.modules() if isinstance(module, SpladePooling))
    values = np.expm1(rows.data.astype(np.float64))  # activations are log1p(relu(logit))
    if pooling.activation_function == "log1p_relu":  # log1p of the above once more
        values = np.expm1(values)
    return Logits(rows.indices, values - depth, rows.shape[0])
