"""A small from-scratch backbone for SPLADE that starts as an idf-weighted bag of words.

A random encoder knows nothing and lights up every term, so its first gradients are spent on silence. This
one starts as the search that BM25 users know, without term frequency, and training adds to it. It is a
stock `BertForMaskedLM`:

- the rows of the (tied) embedding are random unit vectors: any two of them are nearly orthogonal;
- attention and feed-forward add little to the residual stream at first (their outputs are damped);
- the transform of the head is the identity: its GELU works where it is linear, its LayerNorm undoes scale
  and shift;
- so the logit of a term is `OWN_LOGIT` times the largest cosine of its embedding with one of the text's
  tokens: `OWN_LOGIT` for a term of the text, and below `OWN_LOGIT / 2` for others;
- the decoder's bias lowers the logit to expm1 of the activation wanted, sqrt(idf), scaled so that the
  rarest term gets log1p(OWN_LOGIT / 2). The bias is then at most -OWN_LOGIT / 2, and other terms stay at 0.

Both sides carry sqrt(idf), so the dot product carries idf once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from tokenizers import Tokenizer, models, trainers
from transformers import BertConfig, BertForMaskedLM, BertTokenizer
from transformers.models.bert.modeling_bert import BertLayer

from lexforge.common.files import check_new, new_directory
from lexforge.models.vocabulary import BANNED_BIAS

OWN_LOGIT = 8.0
_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ALPHABET = 4000  # more characters than this (rare Han, emoji) become [UNK]
_DAMPING = 0.1  # of the weights by which attention and feed-forward write to the residual stream
_POSITION_NORM = 0.02  # of a position embedding, beside 1 for a token's
_GELU_SCALE, _GELU_SHIFT = 0.5, 3.0  # states of unit variance fall into GELU's linear part


def build_lexical_backbone(
    texts: Sequence[str],
    folder: str | Path,
    *,
    vocab_size: int = 8000,
    hidden_size: int = 128,
    layers: int = 2,
    heads: int = 2,
    max_seq_length: int = 128,
    seed: int = 0,
) -> Path:
    """Train a WordPiece tokenizer on a corpus and save it with a backbone that starts as a bag of its pieces.

    Tokens are lower-cased; accents stay, so Hangul stays in whole syllables.

    Args:
        texts: The documents of the corpus: they give the vocabulary and the inverse document frequencies.
        folder: Where the checkpoint is written; created, and empty if it exists.
        vocab_size: Terms at most; a small corpus gives fewer.
        hidden_size: D, a multiple of `heads`. Below 64, chance similarities of terms pass the threshold.
        layers: Transformer layers.
        heads: Attention heads of a layer.
        max_seq_length: Longest text in tokens, special tokens included.
        seed: Of every random number here; the global random state stays as it is.

    Returns:
        `folder`: `AutoModelForMaskedLM` and `AutoTokenizer` load it, and so does `build_splade`.

    Raises:
        ValueError: No text or no word in the texts, something that is not a text, or sizes that make no
            model.
        FileExistsError: The folder holds something already.
    """
    folder = Path(folder)
    _check(texts, vocab_size, hidden_size, layers, heads, max_seq_length)
    check_new(folder)
    tokenizer = _train_tokenizer(texts, vocab_size, max_seq_length)
    idf = _inverse_document_frequency(tokenizer, texts)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=2 * hidden_size,
        max_position_embeddings=max_seq_length,
        hidden_dropout_prob=0.0,  # noise on the states would blur the identity
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertForMaskedLM(config)
        with torch.no_grad():
            _make_bag_of_words(model, idf, tokenizer.all_special_ids)
    with new_directory(folder) as beside:  # a killed process leaves all of it or none
        model.save_pretrained(beside)
        tokenizer.save_pretrained(beside)
    return folder


def _check(
    texts: Sequence[str], vocab_size: int, hidden_size: int, layers: int, heads: int, max_seq_length: int
) -> None:
    if isinstance(texts, str) or not len(texts):
        raise ValueError(f"texts must be a list of at least one text, got {texts!r}")
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"texts[{position}] is not a text but {type(text).__name__}: {text!r}")
    sizes = {"layers": (layers, 1), "heads": (heads, 1), "hidden_size": (hidden_size, 2)}
    sizes |= {"vocab_size": (vocab_size, len(_SPECIAL_TOKENS) + 1), "max_seq_length": (max_seq_length, 3)}
    for name, (size, smallest) in sizes.items():
        if size < smallest:
            raise ValueError(f"{name} must be at least {smallest}, got {size}")
    if hidden_size % heads:
        raise ValueError(f"hidden_size must be a multiple of heads, got {hidden_size} and {heads}")


def _train_tokenizer(texts: Sequence[str], vocab_size: int, max_seq_length: int) -> BertTokenizer:
    """The pieces come from a WordPiece trainer that cuts words exactly as `BertTokenizer` will."""
    options: dict[str, Any] = {
        "do_lower_case": True,
        "strip_accents": False,
        "model_max_length": max_seq_length,
    }
    bert = BertTokenizer(vocab={token: i for i, token in enumerate(_SPECIAL_TOKENS)}, **options)
    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.normalizer = bert.backend_tokenizer.normalizer
    pieces.pre_tokenizer = bert.backend_tokenizer.pre_tokenizer
    letters, later_letters = _alphabet(pieces, texts, limit=min(_ALPHABET, vocab_size // 4))
    if not letters:
        raise ValueError(f"no word in the {len(texts)} texts: a vocabulary cannot be made")
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        # Named here, or the trainer numbers them in random order, and ties follow the numbers.
        special_tokens=[*_SPECIAL_TOKENS, *(f"##{letter}" for letter in later_letters)],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        min_frequency=2,
        show_progress=False,
    )
    pieces.train_from_iterator(texts, trainer)
    return BertTokenizer(vocab=pieces.get_vocab(), **options)


def _alphabet(pieces: Tokenizer, texts: Sequence[str], limit: int) -> tuple[list[str], list[str]]:
    """The most frequent characters of the texts, sorted; and those of them that occur inside a word."""
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


def _inverse_document_frequency(tokenizer: BertTokenizer, texts: Sequence[str]) -> torch.Tensor:
    """`[V]` float32, > 0: log(1 + (N - df + 0.5) / (df + 0.5)), as in BM25."""
    frequency = np.zeros(len(tokenizer))
    for start in range(0, len(texts), 1000):
        for ids in tokenizer(list(texts[start : start + 1000]), verbose=False)["input_ids"]:
            frequency[np.unique(ids)] += 1
    idf = np.log1p((len(texts) - frequency + 0.5) / (frequency + 0.5))
    return torch.from_numpy(idf.astype(np.float32))


def _make_bag_of_words(model: BertForMaskedLM, idf: torch.Tensor, special_ids: list[int]) -> None:
    """Overwrite the random weights as the module's docstring says."""
    size = model.config.hidden_size
    embeddings = model.bert.embeddings
    tokens = torch.randn(embeddings.word_embeddings.weight.shape)
    tokens -= tokens.mean(dim=1, keepdim=True)  # LayerNorm takes the mean away: let there be none
    embeddings.word_embeddings.weight.copy_(tokens / tokens.norm(dim=1, keepdim=True))
    embeddings.position_embeddings.weight.normal_(std=_POSITION_NORM / size**0.5)
    embeddings.token_type_embeddings.weight.zero_()
    for layer in cast("list[BertLayer]", model.bert.encoder.layer):
        layer.attention.output.dense.weight.mul_(_DAMPING)
        layer.output.dense.weight.mul_(_DAMPING)
    transform = model.cls.predictions.transform
    transform.dense.weight.copy_(_GELU_SCALE * torch.eye(size))
    transform.dense.bias.fill_(_GELU_SHIFT)
    transform.LayerNorm.weight.fill_(OWN_LOGIT / size**0.5)  # a normalised state has norm sqrt(size)
    wanted = (idf / idf.max()).sqrt() * np.log1p(OWN_LOGIT / 2)
    bias = wanted.expm1() - OWN_LOGIT
    bias[special_ids] = BANNED_BIAS
    model.get_output_embeddings().bias.copy_(bias)
