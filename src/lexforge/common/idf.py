"""How rare each vocabulary entry is in a corpus: document frequencies and their inverse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lexforge.common.progress import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BATCH_TEXTS = 1024


def document_frequency(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int | None = None,
    *,
    vocabulary_size: int | None = None,
) -> NDArray[np.int64]:
    """Count in how many texts each vocabulary entry occurs, under the model's own tokenizer.

    Args:
        texts: The corpus, one text per document.
        tokenizer: The model's tokenizer. It adds no special tokens here, so their frequency is 0 unless a
            text spells them out.
        max_seq_length: The number of tokens after which the model cuts a text, special tokens included; None
            counts whole texts.
        vocabulary_size: V, the width of the model's output, which may be padded beyond the tokenizer's
            entries; None takes `len(tokenizer)`.

    Returns:
        `[V]` int64. An entry that occurs several times in a text is counted once for that text.

    Raises:
        ValueError: If there is no text, if an entry of `texts` is not a string, if `max_seq_length` leaves no
            room for a token, or if `vocabulary_size` is smaller than the tokenizer's vocabulary.
    """
    if len(texts) == 0:
        raise ValueError("document frequencies need at least one text; received none")
    room = None
    if max_seq_length is not None:
        room = max_seq_length - tokenizer.num_special_tokens_to_add()
        if room < 1:
            raise ValueError(f"max_seq_length {max_seq_length} leaves no room beside the special tokens")
    size = len(tokenizer) if vocabulary_size is None else vocabulary_size
    if size < len(tokenizer):
        raise ValueError(
            f"vocabulary_size must be at least {len(tokenizer)}, as the tokenizer; received {size}"
        )
    frequency = np.zeros(size, dtype=np.int64)  # [V]
    with Progress(len(texts), "document frequencies", "texts") as progress:
        for start in range(0, len(texts), _BATCH_TEXTS):
            batch = list(texts[start : start + _BATCH_TEXTS])
            for position, text in enumerate(batch, start=start):
                if not isinstance(text, str):
                    raise ValueError(f"text {position} is not a string: {text!r}")
            encoded = tokenizer(batch, add_special_tokens=False, return_attention_mask=False, verbose=False)
            for ids in encoded["input_ids"]:
                # Indexed addition adds 1 to an entry however often its id is repeated.
                frequency[np.asarray(ids[:room], dtype=np.int64)] += 1
            progress.update(len(batch))
    return frequency


def corpus_idf(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int | None = None,
    *,
    vocabulary_size: int | None = None,
) -> NDArray[np.float32]:
    """Compute the inverse document frequency of each vocabulary entry, in BM25's form that is never negative.

    idf_j = ln(1 + (N - df_j + 0.5) / (df_j + 0.5)), where df_j of the N texts hold entry j. The value is near
    0 for an entry of every text and highest for an entry of none. Two parts of the package use it: the
    penalty weights of the FLOPS regulariser (`lexforge.losses.functional.idf_penalty_weights`), which scale
    any idf to [0, 1], and the term weights of an inference-free query side, where an entry of every text
    should weigh next to nothing.

    Args:
        texts: The corpus, one text per document.
        tokenizer: The model's tokenizer.
        max_seq_length: The number of tokens after which the model cuts a text, special tokens included; None
            counts whole texts.
        vocabulary_size: V, the width of the model's output, which may be padded beyond the tokenizer's
            entries; None takes `len(tokenizer)`.

    Returns:
        `[V]` float32, > 0.

    Raises:
        ValueError: If `document_frequency` refuses the arguments.

    Source: the Robertson/Spärck Jones weight without relevance information (Robertson & Zaragoza, "The
    Probabilistic Relevance Framework: BM25 and Beyond", 2009, section 3), with Lucene's 1 + inside the
    logarithm.
    """
    frequency = document_frequency(texts, tokenizer, max_seq_length, vocabulary_size=vocabulary_size)
    return np.log1p((len(texts) - frequency + 0.5) / (frequency + 0.5)).astype(np.float32)
