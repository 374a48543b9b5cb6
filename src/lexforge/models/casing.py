"""Cased encoders that read lower-cased texts."""

from __future__ import annotations

from typing import Any

from sentence_transformers import SparseEncoder
from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast

from lexforge.models.structure import splade_transformers


def lower_case(model: SparseEncoder) -> bool:
    """Let a cased encoder read lower-cased texts, in place. Its saved tokenizer does so everywhere.

    A cased vocabulary has several terms for one word (`DNA`, `dna`, `Women`, `women`), which do not match.
    docs/notebook/casing.md has numbers. An encoder that was trained on cased texts must not be changed.

    Args:
        model: A SPLADE encoder that is not trained yet, symmetric or asymmetric, fused or plain.

    Returns:
        Whether a tokenizer was changed; False if all of them lower-case already.

    Source: Lionis et al. 2026, "To Case or Not to Case" (arXiv 2601.17500).
    """
    changed = False
    for transformer in splade_transformers(model):
        tokenizer: Any = transformer.tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None or transformer.processor is not tokenizer:
            continue  # no tokenizer of Rust, or one beside a processor of images
        before = backend.normalizer
        if before is not None and before.normalize_str("A") == before.normalize_str("a"):
            continue
        rest: list[Any] = [before] if before is not None else []
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *rest])
        # Classes such as BertTokenizer make their own normalizer when they are loaded; this one keeps it.
        transformer.processor = PreTrainedTokenizerFast(
            tokenizer_object=backend,
            model_max_length=tokenizer.model_max_length,
            model_input_names=tokenizer.model_input_names,
            padding_side=tokenizer.padding_side,
            truncation_side=tokenizer.truncation_side,
            **tokenizer.special_tokens_map,
        )
        changed = True
    return changed
