"""How rare each vocabulary entry is in a corpus, and which entries are stop words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from lexforge.data.lines import numbered_lines

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
    """In how many texts each vocabulary entry occurs, under the model's own tokenizer.

    Args:
        texts: The corpus, one text a document.
        tokenizer: The model's tokenizer. Special tokens are not added: their frequency is that in the texts,
            0.
        max_seq_length: Cut texts as the model will, in tokens with the special ones; None counts whole texts.
        vocabulary_size: V, the width of the model's output, which may be padded beyond the tokenizer's
            entries; None is `len(tokenizer)`.

    Returns:
        [V] int64; repeats inside a text count once.

    Raises:
        ValueError: No text, an entry that is not text, no room for a token in `max_seq_length`, or a
            `vocabulary_size` below the tokenizer's.
    """
    if len(texts) == 0:
        raise ValueError("document frequencies need at least one text, got none")
    room = None
    if max_seq_length is not None:
        room = max_seq_length - tokenizer.num_special_tokens_to_add()
        if room < 1:
            raise ValueError(f"max_seq_length {max_seq_length} leaves no room beside the special tokens")
    size = len(tokenizer) if vocabulary_size is None else vocabulary_size
    if size < len(tokenizer):
        raise ValueError(
            f"vocabulary_size is {size}, less than the {len(tokenizer)} entries of the tokenizer"
        )
    frequency = np.zeros(size, dtype=np.int64)
    for start in tqdm(
        range(0, len(texts), _BATCH_TEXTS), desc="document frequencies", unit="batch", disable=None
    ):
        batch = list(texts[start : start + _BATCH_TEXTS])
        for position, text in enumerate(batch, start=start):
            if not isinstance(text, str):
                raise ValueError(f"text {position} is not a string: {text!r}")
        encoded = tokenizer(batch, add_special_tokens=False, return_attention_mask=False, verbose=False)
        for ids in encoded["input_ids"]:
            frequency[np.asarray(ids[:room], dtype=np.int64)] += 1  # an id that repeats counts once
    return frequency


def corpus_idf(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int | None = None,
    *,
    vocabulary_size: int | None = None,
) -> NDArray[np.float32]:
    """Inverse document frequency of each vocabulary entry, the form of BM25 that is never negative.

    idf_j = ln(1 + (N - df_j + 0.5) / (df_j + 0.5)), N texts of which df_j hold entry j: near 0 for what
    stands in every text, highest for what stands in none. Source: the Robertson/Spärck Jones weight without
    relevance information (Robertson & Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond",
    2009, section 3), with Lucene's 1 + inside the logarithm. It serves the regulariser of seed 003, section
    5, which scales any idf to [0, 1], and an inference-free query side, where an entry of every text should
    weigh next to nothing.

    Args:
        texts: The corpus, one text a document.
        tokenizer: The model's tokenizer.
        max_seq_length: Cut texts as the model will, in tokens with the special ones; None counts whole texts.
        vocabulary_size: V, the width of the model's output, which may be padded beyond the tokenizer's
            entries; None is `len(tokenizer)`.

    Returns:
        [V] float32, > 0.

    Raises:
        ValueError: As `document_frequency`.
    """
    frequency = document_frequency(texts, tokenizer, max_seq_length, vocabulary_size=vocabulary_size)
    return np.log1p((len(texts) - frequency + 0.5) / (frequency + 0.5)).astype(np.float32)


def stopword_ids(
    tokenizer: PreTrainedTokenizerBase, language: str | Path | Sequence[str] = "en"
) -> list[int]:
    """The vocabulary entries that are stop words: whole words only, as they begin a word.

    Each word is looked up as it stands, capitalised, and each of these after a space, because tokenizers mark
    the beginning of a word ("▁the" in SentencePiece, "Ġthe" in byte-level BPE, "the" and not "##the" in
    WordPiece). A word that the tokenizer cuts into several pieces has no entry of its own and is left out.

    Args:
        tokenizer: The model's tokenizer.
        language: A language of `stopwordsiso` by its ISO 639-1 code, several of them, or the path of a UTF-8
            file with one word a line (a `Path`, or a string that ends in ".txt").

    Returns:
        Vocabulary ids, ascending, without special tokens.

    Raises:
        ValueError: An unknown language (the message lists those there are), or a file without a word.
        FileNotFoundError: There is no such file.
    """
    special = set(tokenizer.all_special_ids)
    forms = sorted({form for word in _stopwords(language) for form in (word, word.capitalize())})
    spaced = [f" {form}" for form in forms]
    encoded = tokenizer(forms + spaced, add_special_tokens=False, return_attention_mask=False)
    return sorted({ids[0] for ids in encoded["input_ids"] if len(ids) == 1} - special)


def _stopwords(language: str | Path | Sequence[str]) -> Iterable[str]:
    if isinstance(language, Path) or (isinstance(language, str) and language.endswith(".txt")):
        words = {line.strip() for _, line in numbered_lines(Path(language))} - {""}
        if not words:
            raise ValueError(f"the stop-word file {language} holds no word")
        return words
    import stopwordsiso

    codes = [language] if isinstance(language, str) else list(language)
    known = stopwordsiso.langs()
    for code in codes:
        if code not in known:
            raise ValueError(
                f"no stop words for the language {code!r}; there are {sorted(known)}, or pass a file"
            )
    return {word for code in codes for word in stopwordsiso.stopwords(code)}
