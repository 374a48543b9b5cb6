"""Which vocabulary entries are stop words, particles that languages attach to words included."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import models, pre_tokenizers

from lexforge.data.lines import numbered_lines

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Particles mark the role of the word to which they are attached: they follow almost any noun and say nothing
# about the topic. The lists hold case markers, topic and object markers, and the particles for "and", "also",
# "only", "from" and "until". Verb endings are left out: their syllables also occur inside content words.
PARTICLES: dict[str, tuple[str, ...]] = {
    "ko": tuple("은 는 이 가 을 를 의 에 에서 에게 에는 로 으로 와 과 도 만 까지 부터 한테 께서".split()),
    "ja": tuple("は が を に で と の も へ や から まで より では には".split()),
}
_EXAMPLES = 10


def stopword_ids(tokenizer: PreTrainedTokenizerBase, language: str | Path) -> list[int]:
    """Find the vocabulary entries that are stop words; `stopword_summary` describes them.

    Whole words are looked up as they are spelt and capitalised, each with and without a space before it,
    because tokenizers mark the beginning of a word ("▁the" in SentencePiece, "Ġthe" in byte-level BPE, "the"
    and not "##the" in WordPiece). A word that the tokenizer cuts into several pieces has no entry of its own
    and is left out.

    Korean and Japanese attach particles to words, so that a tokenizer sees them as continuations. For these
    languages the `PARTICLES` are stop words as whole words and as continuations: "##은" in WordPiece, "은"
    without the word mark in SentencePiece and byte-level BPE. An entry is one id wherever it occurs, so a
    continuation that only looks like a particle counts as a stop word too.

    Args:
        tokenizer: The model's tokenizer.
        language: A language of `stopwordsiso` by its ISO 639-1 code, or the path of a UTF-8 file with one
            word per line (a `Path`, or a string that ends in ".txt"). A file brings no particles.

    Returns:
        Vocabulary ids, ascending, without special tokens.

    Raises:
        ValueError: If the language is unknown (the message lists the known ones), or if a file holds no word.
        FileNotFoundError: If there is no such file.
    """
    particles = () if _is_file(language) else PARTICLES.get(str(language), ())
    words = {*_stopwords(language), *particles}
    forms = sorted({form for word in words for form in (word, word.capitalize())})
    spaced = [f" {form}" for form in forms]
    encoded = tokenizer(forms + spaced, add_special_tokens=False, return_attention_mask=False)
    found = {ids[0] for ids in encoded["input_ids"] if len(ids) == 1}
    found |= _continuation_ids(tokenizer, particles)
    return sorted(found - set(tokenizer.all_special_ids))


def stopword_summary(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], language: str | Path) -> str:
    """Describe stop words in one line: how many ids there are, and ten of them.

    Args:
        tokenizer: The model's tokenizer.
        ids: What `stopword_ids` returned.
        language: The language or file that was passed to it.

    Returns:
        For example "stop words (ko): 97 ids, such as 가 ##은 ...". The examples are spread evenly over the
        ids.
    """
    shown = [ids[number * len(ids) // _EXAMPLES] for number in range(_EXAMPLES)] if ids else []
    # Entries of byte-level tokenizers are unreadable in the vocabulary's own spelling.
    spell = tokenizer.decode if _is_byte_level(tokenizer) else tokenizer.convert_ids_to_tokens
    examples = " ".join(str(spell(term)) for term in dict.fromkeys(shown))
    return f"stop words ({language}): {len(ids)} ids" + (f", such as {examples}" if examples else "")


def check_language(language: str | Path) -> None:
    """Refuse a language without stop words, before the run needs them.

    Args:
        language: A language or a file, as for `stopword_ids`.

    Raises:
        ValueError: If the language is unknown (the message lists the known ones), or if a file holds no word.
        FileNotFoundError: If there is no such file.
    """
    _stopwords(language)


def _is_file(language: str | Path) -> bool:
    """Return whether the argument names a file of stop words."""
    return isinstance(language, Path) or language.endswith(".txt")


def _stopwords(language: str | Path) -> Iterable[str]:
    """Return the stop words of a language or of a file."""
    if _is_file(language):
        words = {line.strip() for _, line in numbered_lines(Path(language))} - {""}
        if not words:
            raise ValueError(f"the stop-word file {language} holds no word")
        return words
    import stopwordsiso

    known = stopwordsiso.langs()
    if language not in known:
        raise ValueError(
            f"there are no stop words for the language {language!r}; pass one of {sorted(known)}, or a file"
        )
    found: set[str] = stopwordsiso.stopwords(language)
    return found


def _continuation_ids(tokenizer: PreTrainedTokenizerBase, particles: Iterable[str]) -> set[int]:
    """Return the ids of the entries that continue a word and are spelt as one of the particles."""
    vocabulary = tokenizer.get_vocab()
    backend = getattr(tokenizer, "backend_tokenizer", None)
    marks_words = any(entry.startswith("▁") for entry in vocabulary)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found = set()
    for particle in particles:
        entry = particle
        if backend is not None and backend.normalizer is not None:
            # A normalizer may cut syllables into letters, or put the word mark before every text.
            entry = backend.normalizer.normalize_str(entry).removeprefix("▁")
        if backend is not None and isinstance(backend.model, models.WordPiece):
            entry = backend.model.continuing_subword_prefix + entry
        elif _is_byte_level(tokenizer):
            entry = to_bytes.pre_tokenize_str(entry)[0][0]
        elif not marks_words:
            continue  # nothing tells the entries that continue a word from those that begin one
        if entry in vocabulary:
            found.add(vocabulary[entry])
    return found


def _is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the entries of a tokenizer are spelt in bytes, as GPT-2's are."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and "ByteLevel(" in f"{backend.pre_tokenizer} {backend.decoder}"
