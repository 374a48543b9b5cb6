"""The tokenizer of a from-scratch backbone: WordPiece, or Unigram for Chinese, Japanese and Korean.

A WordPiece vocabulary keeps frequent words whole, which suits languages whose words stand between spaces. In
Korean a word carries its particle, and a frequent word with its particle becomes one piece that does not
match the same word with another particle. The Unigram model cuts a word where the corpus makes the parts
likely, so nouns and particles come apart.

Source: Kudo, "Subword Regularization" (arXiv:1804.10959), section 3.2, for the Unigram model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertTokenizer, PreTrainedTokenizerFast

from lexforge.common.cjk import mostly_cjk

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_STEP = 1e-4  # between the log probabilities that the Unigram trainer gives to characters without one
_ALPHABET = 4000  # the number of characters that are kept; rarer ones (rare Han, emoji) become [UNK]


def train_tokenizer(
    texts: Sequence[str], vocab_size: int, max_seq_length: int
) -> BertTokenizer | PreTrainedTokenizerFast:
    """Train the tokenizer that suits the script of a corpus.

    Args:
        texts: The documents of the corpus.
        vocab_size: The largest number of terms, special tokens included.
        max_seq_length: The length in tokens after which texts are cut, special tokens included.

    Returns:
        A lower-casing tokenizer that puts `[CLS]` and `[SEP]` around a text: Unigram where more than half of
        the letters are Hangul, kana or Han, else WordPiece.

    Raises:
        ValueError: If there is no word in the texts.
    """
    if not any(character.isalnum() for text in texts for character in text):
        raise ValueError(f"no word in the {len(texts)} texts: a vocabulary cannot be made")
    train = _train_unigram if mostly_cjk(texts) else _train_wordpiece
    return train(texts, vocab_size, max_seq_length)


def _train_unigram(texts: Sequence[str], vocab_size: int, max_seq_length: int) -> PreTrainedTokenizerFast:
    """Pieces inside words, without a mark at the start of a word: a noun matches wherever it stands."""
    pieces = Tokenizer(models.Unigram())
    pieces.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=[*SPECIAL_TOKENS], unk_token="[UNK]", show_progress=False
    )
    pieces.train_from_iterator(texts, trainer)
    vocabulary = json.loads(pieces.to_str())["model"]["vocab"]
    pieces.model = models.Unigram(_in_one_order(vocabulary), SPECIAL_TOKENS.index("[UNK]"))
    ends = [(token, pieces.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    names = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
    return PreTrainedTokenizerFast(tokenizer_object=pieces, model_max_length=max_seq_length, **names)


def _in_one_order(vocabulary: list[list[Any]]) -> list[tuple[str, float]]:
    """Return the pieces of the Unigram trainer in the same order after each training on the same texts.

    The trainer adds up in random order, so that the last digits of a log probability differ, and numbers the
    pieces by it. Characters that have none of their own get the lowest one, and `_STEP` more each, in random
    order; here they get those in the order of characters.

    Args:
        vocabulary: Piece and log probability, of which the special tokens stand first.

    Returns:
        The same pieces, the special tokens first, the others by falling log probability.
    """
    special, others = vocabulary[: len(SPECIAL_TOKENS)], vocabulary[len(SPECIAL_TOKENS) :]
    others.sort(key=lambda piece: piece[1])
    level = 0
    without: list[int] = []  # places of the characters without a log probability of their own
    for place, (name, score) in enumerate(others):
        above = (score - others[0][1]) / _STEP - level
        if above > 1.001:
            break
        if len(name) == 1 and min(abs(above), abs(above - 1)) < 0.001:
            without.append(place)
            level += round(above)
    for place, name in zip(without, sorted(others[place][0] for place in without), strict=True):
        others[place][0] = name
    ordered = sorted((-round(score, 9), name) for name, score in others)
    return [*map(tuple, special), *((name, -score) for score, name in ordered)]


def _train_wordpiece(texts: Sequence[str], vocab_size: int, max_seq_length: int) -> BertTokenizer:
    """Train a WordPiece vocabulary on words that are cut exactly as `BertTokenizer` will cut them."""
    options: dict[str, Any] = {
        "do_lower_case": True,
        "strip_accents": False,
        "model_max_length": max_seq_length,
    }
    bert = BertTokenizer(vocab={token: i for i, token in enumerate(SPECIAL_TOKENS)}, **options)
    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.normalizer = bert.backend_tokenizer.normalizer
    pieces.pre_tokenizer = bert.backend_tokenizer.pre_tokenizer
    letters, later_letters = _alphabet(pieces, texts, limit=min(_ALPHABET, vocab_size // 4))
    if not letters:
        raise ValueError(f"no word in the {len(texts)} texts: a vocabulary cannot be made")
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        # The trainer would number letters that are not named here in random order, and ties follow numbers.
        special_tokens=[*SPECIAL_TOKENS, *(f"##{letter}" for letter in later_letters)],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        min_frequency=2,
        show_progress=False,
    )
    pieces.train_from_iterator(texts, trainer)
    return BertTokenizer(vocab=pieces.get_vocab(), **options)


def _alphabet(pieces: Tokenizer, texts: Sequence[str], limit: int) -> tuple[list[str], list[str]]:
    """Return the most frequent characters of the texts, sorted, and those of them that occur inside words."""
    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(pieces.normalizer.normalize_str(text).split())
    counts: Counter[str] = Counter()
    inside: set[str] = set()
    for chunk, count in chunks.items():
        for word, _ in pieces.pre_tokenizer.pre_tokenize_str(chunk):
            for letter in word:
                counts[letter] += count
            inside.update(word[1:])
    letters = sorted(sorted(counts, key=lambda letter: (-counts[letter], letter))[:limit])
    return letters, [letter for letter in letters if letter in inside]
