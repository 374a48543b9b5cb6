"""SPLADE encoders from any masked language model, in sentence-transformers' modules and saved format."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Literal, cast

import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer
from sentence_transformers.util import load_file_path
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerBase

from lexforge.models.fused import fuse_splade_head

Similarity = Literal["dot", "cosine"]


def build_splade(
    name_or_path: str | Path,
    *,
    max_seq_length: int | None = None,
    similarity: Similarity | None = None,
    fused: bool = True,
    device: str | None = None,
) -> SparseEncoder:
    """A SPLADE encoder: max over tokens of log1p(relu(logits)) (arXiv:2109.10086, equation 6).

    Args:
        name_or_path: A folder or a hub name: a checkpoint that `AutoModelForMaskedLM` and `AutoTokenizer`
            load, or a saved SPLADE `SparseEncoder` (symmetric, or asymmetric with a `Router`).
        max_seq_length: Texts are cut after this many tokens, special tokens included. By default what the
            saved encoder or the tokenizer says, at most what the model has positions for.
        similarity: How queries and documents are compared. It is saved with the model as
            `similarity_fn_name`, and every evaluation and index reads it there. By default that of the
            saved encoder, and "dot" for a new one.
        fused: Whether to use the head that never builds the logits (`lexforge.models.fuse_splade_head`). It
            changes neither the values nor what is saved.
        device: Where the model is put; by default what sentence-transformers finds.

    Returns:
        The encoder, in evaluation mode.

    Raises:
        FileNotFoundError: `name_or_path` looks like a path and there is nothing.
        ValueError: The checkpoint has no (complete) masked language modelling head, the saved encoder is no
            SPLADE model, `max_seq_length` leaves no room for a word or exceeds the model's positions, or an
            unknown `similarity`.
    """
    if similarity not in ("dot", "cosine", None):
        raise ValueError(f"similarity must be 'dot' or 'cosine', got {similarity!r}")
    name = checked_name(name_or_path)
    if load_file_path(name, "modules.json") is not None:
        model = SparseEncoder(name, device=device, similarity_fn_name=similarity)
        if model.similarity_fn_name not in ("dot", "cosine"):
            raise ValueError(
                f"{name} was saved with the similarity {model.similarity_fn_name!r}; name 'dot' or 'cosine'"
            )
    else:
        _refuse_incomplete_checkpoint(name)
        transformer = Transformer(name, transformer_task="fill-mask")
        model = SparseEncoder(
            modules=[transformer, SpladePooling("max")], device=device, similarity_fn_name=similarity or "dot"
        )
    for transformer in splade_transformers(model):
        _set_max_seq_length(transformer, max_seq_length)
    return fuse_splade_head(model).eval() if fused else model.eval()


def splade_transformers(model: SparseEncoder) -> list[Transformer]:
    """The masked language models of a SPLADE encoder: one, or those of the routes of its `Router`.

    Args:
        model: A symmetric or asymmetric encoder, fused or plain.

    Returns:
        Each `Transformer` that feeds a `SpladePooling`, once.

    Raises:
        ValueError: There is none.
    """
    sequences = [list(model.children())]
    sequences += [
        list(route.children())
        for router in model.modules()
        if isinstance(router, Router)
        for route in router.sub_modules.values()
    ]
    found = [
        module
        for modules in sequences
        for module, follower in pairwise(modules)
        if isinstance(module, Transformer) and isinstance(follower, SpladePooling)
    ]
    if not found:
        raise ValueError(
            "a SPLADE encoder has a Transformer (transformer_task='fill-mask') followed by SpladePooling; "
            f"this one has the modules {[type(module).__name__ for module in model.children()]}"
        )
    return list(dict.fromkeys(found))


def vocabulary_size(model: SparseEncoder) -> int:
    """The width V of a SPLADE encoder's vectors, which may be padded beyond the entries of its tokenizer.

    Args:
        model: A symmetric or asymmetric encoder, fused or plain.

    Returns:
        V.

    Raises:
        ValueError: The model is no SPLADE encoder.
    """
    decoder = splade_transformers(model)[0].model.get_output_embeddings()
    return int(decoder.weight.shape[0])


def checked_name(name_or_path: str | Path) -> str:
    """The name as sentence-transformers takes it; a path must exist."""
    path = Path(name_or_path)
    looks_like_path = isinstance(name_or_path, Path) or path.is_absolute() or len(path.parts) != 2
    if not path.exists() and (looks_like_path or path.parts[0] in (".", "..", "~")):
        raise FileNotFoundError(
            f"there is no model at {str(name_or_path)!r}: give the folder of a checkpoint, or a hub name "
            "such as 'FacebookAI/xlm-roberta-base'"
        )
    if path.is_file():
        raise ValueError(f"a model is a folder, {str(name_or_path)!r} is a file")
    return str(name_or_path)


def _refuse_incomplete_checkpoint(name: str) -> None:
    """A missing head would be filled with random weights and a line in the log; that is no encoder."""
    model, loading = AutoModelForMaskedLM.from_pretrained(name, output_loading_info=True)
    missing = sorted(loading["missing_keys"])
    if missing:
        raise ValueError(
            f"{name} is not a complete masked language model: {type(model).__name__} misses {len(missing)} "
            f"of its weights ({', '.join(missing[:4])}). SPLADE needs the head trained with the encoder"
        )


def _set_max_seq_length(transformer: Transformer, max_seq_length: int | None) -> None:
    tokenizer = cast(PreTrainedTokenizerBase, transformer.tokenizer)  # a text model has one
    limit = position_limit(transformer)
    smallest = tokenizer.num_special_tokens_to_add() + 1
    if max_seq_length is None:
        current = transformer.max_seq_length
        if limit is not None and (current is None or current > limit):
            transformer.max_seq_length = limit
        return
    if max_seq_length < smallest or (limit is not None and max_seq_length > limit):
        allowed = f"at least {smallest}" if limit is None else f"{smallest} to {limit}"
        raise ValueError(
            f"max_seq_length is {max_seq_length}; {type(transformer.model).__name__} allows {allowed}"
        )
    transformer.max_seq_length = max_seq_length


def position_limit(transformer: Transformer) -> int | None:
    """How many tokens the model has positions for; None where it sets no limit.

    RoBERTa and its kin count positions from `padding_idx + 1`, so 514 rows of the table are 512 tokens.
    """
    for name, module in transformer.model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            first = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - first
    return getattr(transformer.model.config, "max_position_embeddings", None)
