"""A small backbone for SPLADE, trained from nothing, that starts as an idf-weighted bag of words.

A random encoder activates every term, so its first gradients only teach it which terms to leave at 0. This
backbone starts as BM25 does, without term frequency, and training adds to that. It is a stock
`BertForMaskedLM` with these weights:

- The rows of the (tied) embedding are random unit vectors, any two of which are nearly orthogonal.
- Attention and feed-forward add little to the residual stream at first, because their outputs are damped.
- The transform of the head is the identity: its GELU works in its linear part, and its LayerNorm undoes scale
  and shift.
- So the logit of a term is `OWN_LOGIT` times the largest cosine of its embedding with one of the text's
  tokens: `OWN_LOGIT` for a term of the text, and below `OWN_LOGIT / 2` for other terms.
- The decoder's bias lowers the logit to expm1 of the wanted activation, sqrt(idf), scaled so that the
  rarest term gets log1p(OWN_LOGIT / 2). The bias is then at most -OWN_LOGIT / 2, so other terms stay at 0.

Queries and documents both carry sqrt(idf), so the dot product carries idf once.
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
from lexforge.common.idf import corpus_idf
from lexforge.models.vocabulary import BANNED_BIAS

OWN_LOGIT = 8.0
_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ALPHABET = 4000  # the number of characters that are kept; rarer ones (rare Han, emoji) become [UNK]
_DAMPING = 0.1  # factor of the weights by which attention and feed-forward write to the residual stream
_POSITION_NORM = 0.02  # L2 norm of a position embedding; that of a token embedding is 1
_GELU_SCALE, _GELU_SHIFT = 0.5, 3.0  # they move states of unit variance into GELU's linear part


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

    Tokens are lower-cased. Accents are kept, which also keeps Hangul in whole syllables.

    Args:
        texts: The documents of the corpus, from which vocabulary and inverse document frequencies come.
        folder: Where the checkpoint is written. The folder is created; if it exists, it must be empty.
        vocab_size: The largest number of terms; a small corpus gives fewer.
        hidden_size: D, a multiple of `heads`. Below 64, chance similarities of terms exceed the threshold.
        layers: The number of transformer layers.
        heads: The number of attention heads per layer.
        max_seq_length: The length of the longest text in tokens, special tokens included.
        seed: The seed of the random weights; the global random state stays as it is.

    Returns:
        `folder`: `AutoModelForMaskedLM` and `AutoTokenizer` load it, and so does `build_splade`.

    Raises:
        ValueError: If there is no text or no word in the texts, if one of them is not a string, or if the
            sizes make no model.
        FileExistsError: If the folder holds something already.
    """
    folder = Path(folder)
    _check(texts, vocab_size, hidden_size, layers, heads, max_seq_length)
    check_new(folder)
    tokenizer = _train_tokenizer(texts, vocab_size, max_seq_length)
    idf = torch.from_numpy(corpus_idf(texts, tokenizer))  # [V]; special tokens are set apart below
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
        raise ValueError(f"texts must be a list of at least one text; received {texts!r}")
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"texts[{position}] is not a text but {type(text).__name__}: {text!r}")
    sizes = {"layers": (layers, 1), "heads": (heads, 1), "hidden_size": (hidden_size, 2)}
    sizes |= {"vocab_size": (vocab_size, len(_SPECIAL_TOKENS) + 1), "max_seq_length": (max_seq_length, 3)}
    for name, (size, smallest) in sizes.items():
        if size < smallest:
            raise ValueError(f"{name} must be at least {smallest}; received {size}")
    if hidden_size % heads:
        raise ValueError(f"hidden_size must be a multiple of heads; received {hidden_size} and {heads}")


def _train_tokenizer(texts: Sequence[str], vocab_size: int, max_seq_length: int) -> BertTokenizer:
    """Train a WordPiece vocabulary on words that are cut exactly as `BertTokenizer` will cut them."""
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
        # The trainer would number letters that are not named here in random order, and ties follow numbers.
        special_tokens=[*_SPECIAL_TOKENS, *(f"##{letter}" for letter in later_letters)],
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


def _make_bag_of_words(model: BertForMaskedLM, idf: torch.Tensor, special_ids: list[int]) -> None:
    """Overwrite the random weights as the module's docstring says; `idf` is `[V]`."""
    size = model.config.hidden_size
    embeddings = model.bert.embeddings
    tokens = torch.randn(embeddings.word_embeddings.weight.shape)  # [V, D]
    tokens -= tokens.mean(dim=1, keepdim=True)  # LayerNorm subtracts the mean, so it must be 0 already
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
    bias = wanted.expm1() - OWN_LOGIT  # [V]
    bias[special_ids] = BANNED_BIAS
    model.get_output_embeddings().bias.copy_(bias)
