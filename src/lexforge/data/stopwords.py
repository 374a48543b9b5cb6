"""Which vocabulary entries are stop words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lexforge.data.lines import numbered_lines

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def stopword_ids(
    tokenizer: PreTrainedTokenizerBase, language: str | Path | Sequence[str] = "en"
) -> list[int]:
    """Find the vocabulary entries that are stop words: whole words only, as they begin a word.

    Each word is looked up as it is spelt and capitalised, each with and without a space before it, because
    tokenizers mark the beginning of a word ("▁the" in SentencePiece, "Ġthe" in byte-level BPE, "the" and not
    "##the" in WordPiece). A word that the tokenizer cuts into several pieces has no entry of its own and is
    left out.

    Args:
        tokenizer: The model's tokenizer.
        language: A language of `stopwordsiso` by its ISO 639-1 code, several of them, or the path of a UTF-8
            file with one word per line (a `Path`, or a string that ends in ".txt").

    Returns:
        Vocabulary ids, ascending, without special tokens.

    Raises:
        ValueError: If a language is unknown (the message lists the known ones), or if a file holds no word.
        FileNotFoundError: If there is no such file.
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
                f"there are no stop words for the language {code!r}; pass one of {sorted(known)}, or a file"
            )
    return {word for code in codes for word in stopwordsiso.stopwords(code)}
