"""Cased encoders that read lower-cased texts, here and where they are saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sentence_transformers import SparseEncoder
from tokenizers import Tokenizer, pre_tokenizers, trainers
from tokenizers import models as tokenizer_models
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    PreTrainedTokenizerBase,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaTokenizer,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
    XLMRobertaTokenizer,
)

from lexforge.models import build_splade, lower_case

TEXTS = ["The DNA of Women", "the dna of women", "In the Café"]
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SIZES |= {"max_position_embeddings": 40}
WORDS = "The the DNA dna of Women women In in Café café".split()


def bert() -> PreTrainedTokenizerBase:
    terms = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    vocabulary = {term: place for place, term in enumerate(terms)}
    return BertTokenizer(vocab=vocabulary, do_lower_case=False)


def roberta() -> PreTrainedTokenizerBase:
    pieces = Tokenizer(tokenizer_models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    vocabulary = pieces.get_vocab()
    merges: list = []  # letters do: a word is the letters of its case
    return RobertaTokenizer(vocab=vocabulary, merges=merges)


def xlm_roberta() -> PreTrainedTokenizerBase:
    terms = ["<s>", "<pad>", "</s>", "<unk>", *(f"▁{word}" for word in WORDS), "▁", "<mask>"]
    return XLMRobertaTokenizer(vocab=[(term, -float(place)) for place, term in enumerate(terms)])


CASED = {
    "BERT": (bert, BertConfig, BertForMaskedLM),
    "RoBERTa": (roberta, RobertaConfig, RobertaForMaskedLM),
    "XLM-R": (xlm_roberta, XLMRobertaConfig, XLMRobertaForMaskedLM),
}


def checkpoint(family: str, folder: Path) -> Path:
    make, config, model = CASED[family]
    tokenizer = make()
    torch.manual_seed(0)
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    model(config(vocab_size=len(tokenizer), **SIZES, **ids)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", CASED)
def test_a_saved_encoder_still_lower_cases(family: str, tmp_path: Path) -> None:
    """Elsewhere the class of a tokenizer would make its cased rules anew, and the vectors would be others."""
    model = build_splade(checkpoint(family, tmp_path / "cased"), max_seq_length=32)
    before = model.encode_document(TEXTS).to_dense()
    assert (before[0] - before[1]).abs().max() > 1e-4
    assert lower_case(model)
    after = model.encode_document(TEXTS).to_dense()
    torch.testing.assert_close(after[0], after[1])
    torch.testing.assert_close(after[1], before[1])  # what was lower-cased is read as before
    model.save_pretrained(str(tmp_path / "saved"))
    loaded = SparseEncoder(str(tmp_path / "saved"), device="cpu")
    assert loaded.max_seq_length == 32
    torch.testing.assert_close(loaded.encode_document(TEXTS).to_dense(), after.cpu())
    one, other = model.tokenizer, AutoTokenizer.from_pretrained(tmp_path / "saved")
    for tokenizer in (one, other):
        assert tokenizer(TEXTS)["input_ids"] == one(TEXTS)["input_ids"]
        assert tokenizer.all_special_ids == one.all_special_ids
        assert tokenizer.pad_token == one.pad_token


def test_an_uncased_encoder_stays_as_it_is(tiny_splade: SparseEncoder) -> None:
    """Its tokenizer lower-cases, and keeps its class."""
    tokenizer = tiny_splade.tokenizer
    assert not lower_case(tiny_splade)
    assert tiny_splade.tokenizer is tokenizer
