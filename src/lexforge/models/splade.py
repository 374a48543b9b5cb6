"""SPLADE encoders from any masked language model, in sentence-transformers' modules and saved format."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Dense

from lexforge.common.similarity import Similarity, check_similarity
from lexforge.models.card import RetrieverCard
from lexforge.models.fused import fuse_splade_head
from lexforge.models.head_scale import scale_head
from lexforge.models.headless import modules_of_checkpoint, modules_of_dense
from lexforge.models.names import check_saved_class, checked_name
from lexforge.models.structure import set_max_seq_length, splade_transformers
from lexforge.models.token_weights import build_token_weights, has_token_weights, load_sparse_encoder

logger = logging.getLogger(__name__)


def build_splade(
    name_or_path: str | Path,
    *,
    max_seq_length: int | None = None,
    similarity: Similarity | None = None,
    texts: Sequence[str] | None = None,
    fused: bool = True,
    device: str | None = None,
) -> SparseEncoder:
    """Build or load a SPLADE encoder, whose vectors are the maximum over tokens of log1p(relu(logits)).

    A model that holds the heads of BGE-M3 becomes an encoder with its sparse head instead (`TokenWeights`).

    Args:
        name_or_path: A folder or a hub name: a checkpoint that `AutoModelForMaskedLM` and `AutoTokenizer`
            load, a decoder LM (Llama, Mistral, Qwen2, Qwen3), an encoder without a head (such as a
            `BertModel`), a saved SPLADE `SparseEncoder` (symmetric, or asymmetric with a `Router`), or a
            saved dense `SentenceTransformer`, whose transformer and prompts are taken. With the two heads of
            BGE-M3 beside it (`sparse_linear.pt`, `colbert_linear.pt`), either gets that sparse head.
        max_seq_length: Texts are cut after this many tokens, special tokens included. None keeps what the
            saved encoder or the tokenizer says, limited to what the model has positions for.
        similarity: How queries and documents are compared. It is saved with the model as
            `similarity_fn_name`, where every evaluation and index reads it. None keeps that of a saved
            encoder, and gives a new one "dot".
        texts: Documents from which `scale_head` sets the scale of a decoder LM or of an encoder without a
            head. Other encoders do not read them; that of a masked language model can be set afterwards.
        fused: Whether to use the head that never builds the logits (`lexforge.models.fuse_splade_head`). It
            changes neither the values nor what is saved.
        device: Where the model is put; None leaves the choice to sentence-transformers.

    Returns:
        The encoder, in evaluation mode.

    Raises:
        FileNotFoundError: If there is no such folder, and no such model on the hub.
        ValueError: If the checkpoint lacks weights or is of another family, if the saved encoder is no SPLADE
            model or has another similarity, if `max_seq_length` leaves no room for a word or
            exceeds the model's positions, or if `similarity` is unknown.

    Source: Formal et al. 2021, "SPLADE v2" (arXiv 2109.10086), equation 6.
    """
    if similarity is not None:
        check_similarity(similarity)
    name = checked_name(name_or_path)
    saved = check_saved_class(name, "SparseEncoder")
    if saved == "SparseEncoder":
        model = load_sparse_encoder(
            name, device=device, similarity_fn_name=similarity, model_card_data=RetrieverCard()
        )
        check_similarity(model.similarity_fn_name)
    else:
        if has_token_weights(name):
            modules, prompts = build_token_weights(name)
        else:
            modules, prompts = modules_of_dense(name) if saved else (modules_of_checkpoint(name), {})
        model = SparseEncoder(
            modules=modules,
            device=device,
            prompts=prompts,
            similarity_fn_name=similarity or "dot",
            model_card_data=RetrieverCard(),
        )
    transformers = splade_transformers(model)
    set_max_seq_length(model, max_seq_length)
    if max_seq_length is None:
        # A Router names the longest of its routes, and a table of queries may have no limit of its own.
        longest = max((each.max_seq_length or 0 for each in transformers), default=0)
        if longest and (model.max_seq_length or longest) > longest:
            model.max_seq_length = longest
    if saved != "SparseEncoder" and isinstance(model[1], Dense):
        if texts is None:
            logger.warning(
                f"{name} has no head of a masked language model: its embeddings decode, and about half of "
                "all terms are active until lexforge.models.scale_head sets their scale from texts"
            )
        else:
            scale_head(model, texts)
    return fuse_splade_head(model).eval() if fused else model.eval()
