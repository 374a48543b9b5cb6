"""A small from-scratch backbone for SPLADE that starts as BM25.

A random encoder knows nothing and lights up every term, so its first gradients are spent on silence. This one
starts as the search that BM25 users know, and training adds to it. It is a stock `BertForMaskedLM`, whose
first attention layer counts terms. Let e_j be the row of term j in the embedding, H the number of heads and
d = D / H.

1. The rows e_j are random, with the same norm in the d columns of each head, so two of them are nearly
   orthogonal within each head. Only words that are spelled alike, such as the forms of a word, have rows of
   a given cosine, which step 5 needs. The LayerNorm behind the embedding makes e_j a unit vector, whatever
   the norm of its row, and its bias adds `CONSTANT` u, with u a unit vector orthogonal to every e_j.
2. Query and key of the first layer are the identity times a scale, such that a head's score is S for two
   tokens of the same term and about 0 for others. The row of [CLS] points along u so far that its score is
   S + ln(K1 (1 - B)) for every token. A term with frequency tf, beside L other tokens, then gives its own
   copies the attention

       s = tf e^S / (tf e^S + K1 (1 - B) e^S + r L) = tf / (tf + K1 (1 - B + B L / L_mean)),

   a weight of BM25, for e^S = r L_mean / (K1 B). Here r = e^(S^2 / 2d) is the mean of e^(score) over other
   terms, whose scores have the variance S^2 / d.
3. The value is the identity, so attention adds `GAIN` s e_j to the state, and LayerNorm turns the state
   (1 + GAIN s) e_j + CONSTANT u into one whose cosine with e_j is

       a(s) = (1 + GAIN s) / sqrt((1 + GAIN s)^2 + CONSTANT^2),

   which bends down as s grows, as the log1p of the activation does. K1 and B are therefore larger than in
   BM25: what they give at the end falls with the length of a text about as BM25's weight for k1 = 1.5 and
   b = .9. What the feed-forward and later layers add is damped.
4. The transform of the head is the identity: its GELU works where it is linear, its LayerNorm undoes scale
   and shift. The logit of term j is g |e_j| (a(s) - a(0)). The decoder's bias takes a(0) away; this keeps the
   terms silent that are not in the text, as their cosine is that of a random pair. The norms of the rows are
   such that the activation of a term that occurs once in a text of mean length is
   `ACTIVATION` sqrt(idf_j / max idf).
5. A word k that is spelled like a word j of the text, but does not occur in it, has the logit
   g |e_k| (a(s) c - a(0)), with c the cosine of their rows. It is active where a(s) is large, so in short
   texts: queries expand by other forms of their words, and documents hardly do. Where s = `SHORT`, the logit
   of a rarer form k is a share of j's logit: `FORM`, and the more, the more alike they are. A form that is
   more frequent than j gets less. So the word that is in the text weighs more than its forms.

Queries and documents both carry sqrt(idf), so the dot product carries idf once. The state that leaves the
last layer has u taken away again, so that it can also be averaged to a dense vector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerBase
from transformers.models.bert.modeling_bert import BertLayer

from lexforge.common.cjk import mostly_cjk
from lexforge.common.idf import corpus_idf
from lexforge.models.decoder_bias import BANNED_BIAS
from lexforge.models.lexical_tokenizer import SPECIAL_TOKENS, train_tokenizer
from lexforge.models.similar_words import similar_words
from lexforge.settings import LEXICAL
from lexforge.storage.files import check_new, new_directory

K1, B = 4.0, 0.95  # saturation of the term frequency, and share of length normalisation; step 3 says why
ACTIVATION = 0.6  # of the rarest term, once in a text of mean length: small, so that log1p hardly bends it
GAIN, CONSTANT = 2.0, 3.0  # how strongly attention writes; the constant part that makes the result linear
SIMILAR = 0.5  # the least cosine, by their n-grams, of words that are spelled alike
FORM, SLOPE = 0.1, 0.4  # the share of step 5 at that cosine, and by how much it grows with the cosine
SHORT = 0.7  # s of a word in a short query
_ROUNDS = 60  # until cosines are exact to .001
_DAMPING = 0.1  # factor of the weights by which attention and feed-forward write to the residual stream
_POSITION_NORM = 0.006  # L2 norm of a position embedding; that of the rarest term is 1
_GELU_SCALE, _GELU_SHIFT = 0.5, 3.0  # they move states of unit variance into GELU's linear part


def build_lexical_backbone(
    texts: Sequence[str],
    folder: str | Path,
    *,
    vocab_size: int | None = None,
    hidden_size: int = 128,
    layers: int = 2,
    heads: int = 2,
    max_seq_length: int = 128,
    seed: int = 0,
) -> Path:
    """Train a tokenizer on a corpus and save it with a backbone that starts as BM25 over its pieces.

    Tokens are lower-cased. Accents are kept, which also keeps Hangul in whole syllables.

    Args:
        texts: The documents of the corpus, from which vocabulary and inverse document frequencies come.
        folder: Where the checkpoint is written. The folder is created; if it exists, it must be empty.
        vocab_size: The largest number of terms; a small corpus gives fewer. None takes 16,000 for Chinese,
            Japanese and Korean, whose pieces are short and many, and 8,000 for other languages.
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
    _check_texts(texts)
    if vocab_size is None:
        vocab_size = 16_000 if mostly_cjk(texts) else 8_000
    _check(vocab_size, hidden_size, layers, heads, max_seq_length)
    check_new(folder)
    tokenizer = train_tokenizer(texts, vocab_size, max_seq_length)
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
            _make_bm25(model, idf, _mean_tokens(tokenizer, texts, max_seq_length), tokenizer)
    with new_directory(folder) as beside:  # a killed process leaves all of it or none
        model.save_pretrained(beside)
        tokenizer.save_pretrained(beside)
    return folder


def resolve_backbone(
    name: str, texts: Sequence[str], folder: str | Path, *, max_seq_length: int | None, seed: int
) -> str | Path:
    """Return the checkpoint to load an encoder from, and build it first if it is the lexical backbone.

    A backbone that an earlier call left in the folder is used again: a resumed run continues from it, and of
    several processes only the first one builds it.

    Args:
        name: `lexical`, or the folder or hub name of a checkpoint, which is returned as it is.
        texts: The documents that give the lexical backbone its vocabulary and its weights.
        folder: Where the lexical backbone is saved.
        max_seq_length: Longest text of the lexical backbone in tokens, special tokens included; no other
            checkpoint reads it.
        seed: Seed of the random vectors of the lexical backbone.

    Returns:
        `folder` for `lexical`, else `name`.

    Raises:
        ValueError: If the texts give no vocabulary.
    """
    if name != LEXICAL:
        return name
    if not Path(folder).is_dir():
        assert max_seq_length is not None  # settings that are resolved have one for it
        build_lexical_backbone(texts, folder, max_seq_length=max_seq_length, seed=seed)
    return folder


def _check_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str) or not len(texts):
        raise ValueError(f"texts must be a list of at least one text; received {texts!r}")
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"texts[{position}] is not a text but {type(text).__name__}: {text!r}")


def _check(vocab_size: int, hidden_size: int, layers: int, heads: int, max_seq_length: int) -> None:
    sizes = {"layers": (layers, 1), "heads": (heads, 1), "hidden_size": (hidden_size, 2)}
    sizes |= {"vocab_size": (vocab_size, len(SPECIAL_TOKENS) + 1), "max_seq_length": (max_seq_length, 3)}
    for name, (size, smallest) in sizes.items():
        if size < smallest:
            raise ValueError(f"{name} must be at least {smallest}; received {size}")
    if hidden_size % heads:
        raise ValueError(f"hidden_size must be a multiple of heads; received {hidden_size} and {heads}")


def _mean_tokens(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_seq_length: int) -> float:
    """The mean length of the texts in tokens, as the model reads them."""
    total = 0
    for start in range(0, len(texts), 1000):
        batch = list(texts[start : start + 1000])
        rows = tokenizer(batch, truncation=True, max_length=max_seq_length, return_attention_mask=False)
        total += sum(map(len, rows["input_ids"]))
    return total / len(texts)


def _directions(
    terms: Sequence[str], weight: torch.Tensor, size: int, heads: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Unit vectors e `[V, D]`, u `[D]` and v `[D]`, orthogonal within each head except for pairs of e.

    `weight` `[V]` holds the norm of each term's row. Step 5 compares the norms of two similar words.
    Every block of `D / heads` columns has the same norm and no mean, which LayerNorm would take away.
    """
    width = size // heads

    def allowed(vectors: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        vectors = vectors - vectors.mean(dim=2, keepdim=True)
        for other in others:
            vectors = vectors - (vectors * other).sum(dim=2, keepdim=True) * other
        return vectors / vectors.norm(dim=2, keepdim=True)

    u = allowed(torch.randn(1, heads, width))
    v = allowed(torch.randn(1, heads, width), u)
    e = allowed(torch.randn(len(terms), heads, width), u, v)

    # Two random rows have a cosine of about .1 by chance, which would hide the differences that step 5 needs.
    # So the rows of similar words are moved until their cosines are exact.
    first, second, cosines = map(torch.from_numpy, similar_words(terms, SIMILAR))
    one, other = weight[first], weight[second]
    share = (FORM + SLOPE * (cosines - SIMILAR)) * torch.minimum(one, other) / torch.maximum(one, other)
    silent, present = state_cosine(0), state_cosine(SHORT)
    wanted = (silent + share * (present - silent)) / present
    rate = 0.5 / torch.bincount(first, minlength=len(terms)).clamp(min=1).sqrt()
    for _ in range(_ROUNDS):
        missing = wanted - (e[first] * e[second]).sum(2).mean(1)
        pull = torch.zeros_like(e).index_add_(0, first, missing[:, None, None] * e[second])
        e = allowed(e + rate[:, None, None] * pull, u, v)
    tokens, constant, marker = ((part / heads**0.5).flatten(1) for part in (e, u, v))
    return tokens, constant[0], marker[0]


def _matching_score(mean_tokens: float, width: int) -> float:
    """S of step 2: the smaller solution of S = ln(L_mean / (K1 B)) + S^2 / (2 width)."""
    target = max(math.log(mean_tokens / (K1 * B)), 0.5)  # below: texts of a word or two need no length
    if 2 * target > width:
        raise ValueError(
            f"hidden_size / heads must be at least {math.ceil(2 * target)} for texts of {mean_tokens:.0f} "
            f"tokens on average; received {width}"
        )
    return width - math.sqrt(width**2 - 2 * width * target)


def state_cosine(share: float) -> float:
    """Return a(s) of step 3, the cosine of a term's state with its row, for a share of the attention."""
    own = 1 + GAIN * share
    return own / math.hypot(own, CONSTANT)


def _make_bm25(
    model: BertForMaskedLM, idf: torch.Tensor, mean_tokens: float, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Overwrite the random weights as the module's docstring says; its steps are numbered alike here."""
    size, heads = model.config.hidden_size, model.config.num_attention_heads
    width, scale = size // heads, size**0.5  # LayerNorm gives its states the norm sqrt(D)
    terms = tokenizer.convert_ids_to_tokens(list(range(len(idf))))
    weight = torch.expm1(ACTIVATION * (idf / idf.max()).sqrt()) / math.expm1(ACTIVATION)  # [V]
    weight[tokenizer.all_special_ids] = 1.0
    tokens, u, v = _directions(terms, weight, size, heads)
    score = _matching_score(mean_tokens, width)

    # 1. Unit vectors of the terms, and the constant part. The norm of a row is its weight in step 4.
    along = (score + math.log(K1 * (1 - B))) / (score * CONSTANT)
    tokens[tokenizer.cls_token_id] = along * u + math.sqrt(1 - along**2) * v
    embeddings = model.bert.embeddings
    embeddings.word_embeddings.weight.copy_(tokens * weight.unsqueeze(1))
    embeddings.position_embeddings.weight.normal_(std=_POSITION_NORM / scale)
    embeddings.token_type_embeddings.weight.zero_()
    own = 1 / math.hypot(1, CONSTANT)  # the share of e_j in a state of norm 1
    embeddings.LayerNorm.weight.fill_(own)
    embeddings.LayerNorm.bias.copy_(CONSTANT * own * scale * u)

    # 2. and 3. Attention of a token to the copies of its term.
    blocks = cast("list[BertLayer]", model.bert.encoder.layer)
    for block in blocks:
        block.attention.output.dense.weight.mul_(_DAMPING)
        block.output.dense.weight.mul_(_DAMPING)
    identity = torch.eye(size)
    attention = blocks[0].attention
    sharpness = math.sqrt(score * heads * math.sqrt(width)) / (own * scale)
    attention.self.query.weight.copy_(sharpness * identity)
    attention.self.key.weight.copy_(sharpness * identity)
    attention.self.value.weight.copy_(identity)
    attention.output.dense.weight.copy_(GAIN * identity)
    attention.output.dense.bias.copy_(-GAIN * CONSTANT * own * scale * u)

    # 4. The head: the last layer gives u away, the transform takes it back.
    once = 1 / (1 + K1)  # s of a term that occurs once in a text of mean length
    constant = math.sqrt(1 - state_cosine(once) ** 2) * scale * u
    blocks[-1].output.LayerNorm.bias.copy_(-constant)
    transform = model.cls.predictions.transform
    transform.dense.weight.copy_(_GELU_SCALE * identity)
    transform.dense.bias.copy_(_GELU_SHIFT + _GELU_SCALE * constant)
    gain = math.expm1(ACTIVATION) / (state_cosine(once) - state_cosine(0))
    transform.LayerNorm.weight.fill_(gain / scale)
    bias = -gain * state_cosine(0) * weight
    bias[tokenizer.all_special_ids] = BANNED_BIAS
    model.get_output_embeddings().bias.copy_(bias)
