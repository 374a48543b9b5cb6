"""An encoder whose queries need no model: a table of term weights for queries, and SPLADE for documents."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router
from sentence_transformers.base.modules.module import Module
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding
from transformers import PreTrainedTokenizerBase

from lexforge.models.card import RetrieverCard
from lexforge.models.prompts import saved_prompt
from lexforge.models.structure import has_router, splade_transformers, vocabulary_size


def build_inference_free(
    document_encoder: SparseEncoder, query_weights: ArrayLike, *, trainable: bool = False
) -> SparseEncoder:
    """Build an encoder with a `Router`: queries are looked up in a table, documents are encoded.

    A query's activation is the weight of each of its distinct tokens, however often it occurs, and 0
    elsewhere. Queries and documents must be told apart: call `encode_query` and `encode_document`, and set
    `router_mapping` in the training arguments.

    Args:
        document_encoder: A symmetric SPLADE encoder, fused or plain; the result shares its weights, its fused
            head, its similarity, its prompt of documents and its `max_active_dims`. sentence-transformers
            applies that limit to queries too.
        query_weights: `[V]`, finite and >= 0, usually the inverse document frequency. Special tokens get 0,
            because a query holds one only where a character is unknown.
        trainable: Whether training changes the weights of the queries too.

    Returns:
        The asymmetric encoder; `save_pretrained` names stock sentence-transformers classes only.

    Raises:
        ValueError: If the encoder has no SPLADE head or is asymmetric already, if its tokenizer and decoder
            differ in size, or if the weights are not one finite number >= 0 for each term.

    Source: Shen et al. 2024 (arXiv 2411.04403), sections 3.1 and 3.2.
    """
    transformer = splade_transformers(document_encoder)[0]
    modules = cast("list[Module]", list(document_encoder.children()))
    if has_router(document_encoder):
        raise ValueError("the document encoder has a Router already; pass a symmetric SPLADE encoder")
    tokenizer = cast(PreTrainedTokenizerBase, transformer.tokenizer)  # a text model has one
    terms = vocabulary_size(document_encoder)
    if len(tokenizer) != terms:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} terms and the decoder {terms}: a saved lookup could not be "
            "loaded; resize the model's embeddings to the tokenizer first"
        )
    weights = np.array(query_weights, dtype=np.float32)  # [V]
    if weights.shape != (terms,) or not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(
            f"query_weights must be [{terms}], finite and >= 0; received shape {weights.shape} with "
            f"{int((~np.isfinite(weights)).sum())} non-finite and {int((weights < 0).sum())} negative values"
        )
    weights[tokenizer.all_special_ids] = 0.0
    lookup = SparseStaticEmbedding(
        cast(Any, tokenizer), weight=torch.from_numpy(weights), frozen=not trainable
    )
    prompt = saved_prompt(document_encoder, "document")
    router = Router.for_query_document(query_modules=[lookup], document_modules=modules)
    return SparseEncoder(
        modules=[router],
        model_card_data=RetrieverCard(),
        device=str(document_encoder.device),
        similarity_fn_name=document_encoder.similarity_fn_name,
        prompts={"document": prompt} if prompt else None,
        max_active_dims=document_encoder.max_active_dims,
    )
