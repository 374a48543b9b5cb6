"""The lexical backbone: a stock checkpoint that starts as the bag of words its docstring promises."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from lexforge.models import build_lexical_backbone, build_splade
from lexforge.models.lexical_init import ACTIVATION, K1, B, state_cosine

SUBJECTS = "the parser|a socket|an index|the cache|서울의 대학교|한국어 문서".split("|")
VERBS = "reads files|returns keys|raises errors|sorts values|검색을 한다|질문에 답한다".split("|")
ENDS = "quickly|with care|on request|twice|in order|오늘".split("|")
TEXTS = [f"{s} {v} {e}." for s, v, e in itertools.product(SUBJECTS, VERBS, ENDS)] + ["Café Zürich"] * 2

NOUNS, PARTICLES = "대학교|도서관|박물관|연구소|시청".split("|"), "은|을|에서|의".split("|")
KOREAN = [
    f"{noun}{particle} {verb}"
    for noun, particle, verb in itertools.product(NOUNS, PARTICLES, "열린다|닫는다|본다".split("|"))
]
RARE = [chr(ord("가") + 97 * place) for place in range(60)]  # characters too rare for a probability


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_lexical_backbone(
        TEXTS, tmp_path_factory.mktemp("lexical"), vocab_size=300, max_seq_length=32
    )


def test_it_is_a_stock_checkpoint(backbone: Path) -> None:
    """Anyone can go on with transformers alone; the tokenizer keeps Hangul syllables and accents whole."""
    assert json.loads((backbone / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    model = AutoModelForMaskedLM.from_pretrained(backbone)
    tokenizer = AutoTokenizer.from_pretrained(backbone)
    assert model.get_output_embeddings().out_features == len(tokenizer) <= 300
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight  # tied
    assert tokenizer.tokenize("The PARSER 서울의 café") == ["the", "parser", "서울의", "café"]
    assert tokenizer.model_max_length == model.config.max_position_embeddings == 32
    assert not [token for text in TEXTS for token in tokenizer.tokenize(text) if token == "[UNK]"]


def test_it_starts_as_bm25(backbone: Path) -> None:
    """Each term of a text gets sqrt(idf) times its weight by frequency and length; all others are silent."""
    model = build_splade(backbone, device="cpu")
    tokenizer = model.tokenizer
    bags = [set(tokenizer.tokenize(text)) for text in TEXTS]
    idf = {}
    for term in tokenizer.get_vocab():
        count = sum(term in bag for bag in bags)
        idf[term] = math.log(1 + (len(TEXTS) - count + 0.5) / (count + 0.5))
    rarest = max(idf.values())
    mean = np.mean([len(tokenizer(text)["input_ids"]) for text in TEXTS])
    texts = [
        *TEXTS[::10],
        "sorts",
        "the the the cache cache reads reads 문서",
        "답한다 질문에 검색을 quickly care",
    ]
    rows = model.encode(texts, convert_to_sparse_tensor=False, show_progress_bar=False).numpy()
    for text, row in zip(texts, rows, strict=True):
        terms = Counter(tokenizer.tokenize(text))
        assert {tokenizer.convert_ids_to_tokens(int(i)) for i in np.flatnonzero(row)} == set(terms)
        length = sum(terms.values()) + 2
        for term, count in terms.items():
            once = math.sqrt(idf[term] / rarest) * ACTIVATION
            others = length - count - 1  # [CLS] is the part that no length changes
            share = count / (count + K1 * (1 - B + B * others / mean))
            rise = state_cosine(share) - state_cosine(0)
            # chance similarities of the random rows move the attention by up to a fifth in so short texts
            expected = math.log1p(math.expm1(once) * rise / (state_cosine(1 / (1 + K1)) - state_cosine(0)))
            assert row[tokenizer.convert_tokens_to_ids(term)] == pytest.approx(expected, rel=0.3)


@pytest.mark.parametrize("share_of_mean", [0.35, 1.0, 2.7])
def test_a_weight_falls_with_the_length_as_bm25s_does(share_of_mean: float) -> None:
    """A start that hardly minds the length prefers long texts: .02 of nDCG@10 on docstrings of 384 tokens."""

    def activation(length: float) -> float:
        share = 1 / (1 + K1 * (1 - B + B * length))
        rise = state_cosine(share) - state_cosine(0)
        return math.log1p(
            math.expm1(0.7 * ACTIVATION) * rise / (state_cosine(1 / (1 + K1)) - state_cosine(0))
        )

    def bm25(length: float) -> float:
        return 1 / (1 + 1.5 * (0.1 + 0.9 * length))

    found = activation(share_of_mean) / activation(1)
    assert found == pytest.approx(bm25(share_of_mean) / bm25(1), rel=0.06)


def test_more_occurrences_and_shorter_texts_weigh_more(backbone: Path) -> None:
    """The order that BM25 gives to frequencies and lengths holds for every term, not only on average."""
    model = build_splade(backbone, device="cpu")
    texts = [
        "parser",
        "parser parser",
        "parser reads files with care in order",
        "parser cache index keys " * 4,
    ]
    rows = model.encode(texts, convert_to_sparse_tensor=False, show_progress_bar=False)
    once, twice, longer, often = rows[:, model.tokenizer.convert_tokens_to_ids("parser")].tolist()
    assert longer < once < twice
    assert longer < often < twice


def test_korean_takes_pieces_that_leave_particles_apart(tmp_path: Path) -> None:
    """A noun matches itself with another particle, which whole words do not."""
    build_lexical_backbone(KOREAN, tmp_path / "backbone", vocab_size=80, max_seq_length=32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "backbone")
    assert tokenizer.tokenize("대학교은")[0] == tokenizer.tokenize("대학교에서")[0] == "대학교"
    assert tokenizer.convert_ids_to_tokens(tokenizer("시청을")["input_ids"])[
        :: len(tokenizer("시청을")["input_ids"]) - 1
    ] == ["[CLS]", "[SEP]"]


def test_every_part_of_it_trains(backbone: Path) -> None:
    """A start at exact zeros somewhere would leave weights without gradient."""
    model = build_splade(backbone, device="cpu").train()
    features = {key: value for key, value in model.preprocess(TEXTS[:16]).items() if torch.is_tensor(value)}
    model(features)["sentence_embedding"].square().sum().backward()
    silent = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    ]
    # softmax does not see a constant added to all keys: the key bias has no gradient, in any BERT
    assert [name for name in silent if "key.bias" not in name] == []


@pytest.mark.parametrize("texts", [TEXTS, [*KOREAN, *map("{}가 본다".format, RARE)]])
def test_the_same_seed_gives_the_same_weights(tmp_path: Path, texts: list[str]) -> None:
    """A run can be repeated, whatever was drawn before it, and the caller's random state is left alone."""
    settings = {"vocab_size": 200, "hidden_size": 64, "max_seq_length": 16}
    state = torch.get_rng_state()
    first = build_lexical_backbone(texts, tmp_path / "first", **settings)
    assert torch.equal(torch.get_rng_state(), state)
    torch.randn(3)
    second = build_lexical_backbone(texts, tmp_path / "second", **settings)
    other = build_lexical_backbone(texts, tmp_path / "other", seed=1, **settings)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (first, second, other)]
    assert weights[0] == weights[1] != weights[2]
    assert (first / "tokenizer.json").read_text() == (second / "tokenizer.json").read_text()


def test_sizes_are_those_asked_for(tmp_path: Path) -> None:
    """Each argument reaches the model."""
    folder = build_lexical_backbone(
        TEXTS, tmp_path, vocab_size=150, hidden_size=96, layers=1, heads=3, max_seq_length=20
    )
    config = AutoModelForMaskedLM.from_pretrained(folder).config
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (96, 1, 3)
    assert (config.max_position_embeddings, config.vocab_size) == (20, 150)


def test_a_folder_in_use(tmp_path: Path) -> None:
    """Nothing is overwritten."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is not an empty directory"):
        build_lexical_backbone(TEXTS, tmp_path, vocab_size=200)
    with pytest.raises(FileExistsError, match="is not an empty directory"):
        build_lexical_backbone(TEXTS, tmp_path / "notes.txt", vocab_size=200)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "at least one text"),
        ("one string", "at least one text"),
        (["a", None], r"texts\[1\] is not a text but NoneType"),
        (["", "  "], "no word in the 2 texts"),
    ],
)
def test_texts_that_make_no_vocabulary(tmp_path: Path, texts, message: str) -> None:
    """A string is a sequence of texts to Python, and would train on letters."""
    with pytest.raises(ValueError, match=message):
        build_lexical_backbone(texts, tmp_path / "backbone")
    assert not (tmp_path / "backbone").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hidden_size": 100, "heads": 3}, "multiple of heads; received 100 and 3"),
        ({"layers": 0}, "layers must be at least 1; received 0"),
        ({"heads": 0}, "heads must be at least 1; received 0"),
        ({"hidden_size": 0}, "hidden_size must be at least 2; received 0"),
        ({"vocab_size": 5}, "vocab_size must be at least 6; received 5"),
        ({"max_seq_length": 2}, "max_seq_length must be at least 3; received 2"),
    ],
)
def test_sizes_that_make_no_model(tmp_path: Path, wrong: dict[str, int], message: str) -> None:
    """The message names the argument, not a tensor shape deep in a library."""
    with pytest.raises(ValueError, match=message):
        build_lexical_backbone(TEXTS, tmp_path / "backbone", **wrong)


def test_a_short_text_lights_up_other_forms_of_its_words(tmp_path: Path) -> None:
    """With a smaller weight than its own words, also if they are rarer; a longer text has its own only."""
    verbs = "return sort connect collect convert expect".split()
    forms = [verb + end for verb in verbs for end in ("", "s", "ed", "ing")]
    texts = [
        f"{form} a file and {other} the key of {verb} {number} times"
        for form in forms
        for other, verb in itertools.product(verbs, repeat=2)
        for number in (1, 2)
    ]
    build_lexical_backbone(texts, tmp_path / "backbone", vocab_size=400, max_seq_length=32)
    model = build_splade(tmp_path / "backbone", device="cpu")

    def active(text: str) -> dict[str, float]:
        row = model.encode([text], convert_to_sparse_tensor=False, show_progress_bar=False).numpy()[0]
        return {model.tokenizer.convert_ids_to_tokens(int(i)): float(row[i]) for i in np.flatnonzero(row)}

    for word, found in [("connecting", {"connected", "connects"}), ("connect", {"connects"})]:
        short = active(word)
        assert {word} | found <= short.keys()
        assert not {"return", "sort", "sorts", "file"} & short.keys()
        assert max(weight for term, weight in short.items() if term != word) < 0.6 * short[word]
    longer = "sorts a file and connecting the key of return 2 times"
    assert active(longer).keys() <= set(model.tokenizer.tokenize(longer))
