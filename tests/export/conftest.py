"""Encoded corpora of given vectors, and small encoders of every family that is exported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from lexforge.corpus import EncodedCorpus, encoded_corpus
from lexforge.storage.manifest import pack_manifest

# Tokenizers are trained on these texts.
_TEXTS = [
    *("sort a list", "open file!", "cafe naive search", "the index of a vector", "load", "batch of tokens"),
    "parse the tree and hash each key",
]
_LENGTH = 32


def store_vectors(
    folder: Path, vectors, ids: list[str], similarity: str = "dot", block_rows: int = 4
) -> EncodedCorpus:
    """Write vectors as `encode_corpus` would."""
    kind = "sparse" if sparse.issparse(vectors) else "dense"
    manifest = encoded_corpus.Manifest(
        "model", "f" * 40, kind, similarity, 128, "c" * 40, len(ids), block_rows, 32, "fp32"
    )
    folder.mkdir()
    (folder / "manifest.json").write_text(pack_manifest(encoded_corpus.FORMAT, asdict(manifest)))
    for number in range(manifest.blocks):
        rows = slice(number * block_rows, (number + 1) * block_rows)
        encoded_corpus.write_block(folder, vectors[rows], ids[rows], manifest, number)
    return EncodedCorpus(folder)


@pytest.fixture
def store() -> Callable[..., EncodedCorpus]:
    return store_vectors


@pytest.fixture
def some_vectors() -> Callable[..., sparse.csr_array]:
    """Random sparse rows of float32 weights with all their digits; row 3 is empty."""

    def make(rows: int, width: int = 40, seed: int = 0) -> sparse.csr_array:
        rng = np.random.default_rng(seed)
        dense = rng.uniform(0.01, 3, (rows, width)).astype(np.float32) * (rng.random((rows, width)) < 0.3)
        dense[3:4] = 0
        return sparse.csr_array(dense)

    return make


@pytest.fixture(scope="session")
def save_encoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Save a random SPLADE encoder of a family once; returns its folder."""
    saved: dict[tuple[Any, ...], Path] = {}

    def save(family: str = "bert", pooling: str = "max", activation: str = "relu") -> Path:
        key = family, pooling, activation
        if key not in saved:
            saved[key] = _save(family, pooling, activation, tmp_path_factory.mktemp(f"encoder-{family}"))
        return saved[key]

    return save


def _save(family: str, pooling: str, activation: str, folder: Path) -> Path:
    import torch
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer

    tokenizer = _tokenizer(family)
    torch.manual_seed(0)
    model = _masked_language_model(family, len(tokenizer), tokenizer.pad_token_id)
    tokenizer.save_pretrained(folder / "checkpoint")
    model.save_pretrained(folder / "checkpoint")
    transformer = Transformer(
        str(folder / "checkpoint"), transformer_task="fill-mask", max_seq_length=_LENGTH
    )
    modules = [transformer, SpladePooling(pooling, activation)]  # type: ignore[arg-type]
    encoder = SparseEncoder(modules=modules, device="cpu", similarity_fn_name="dot")
    encoder.save_pretrained(str(folder / "model"))
    return folder / "model"


def _tokenizer(family: str) -> Any:
    """A tokenizer of the family's kind, trained on `_TEXTS`."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import BertTokenizerFast, PreTrainedTokenizerFast

    if family in ("bert", "distilbert"):
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        words = {piece for text in _TEXTS for piece in (*text.lower().split(), *text)}
        tokens = [*special, *sorted(words - {" "}), *"bjmqwxyz", "##s", "##ing"]
        vocabulary = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
        tokenizer = BertTokenizerFast(vocab=vocabulary, do_lower_case=True)
        if family == "distilbert":
            tokenizer.model_input_names = ["input_ids", "attention_mask"]
        return tokenizer
    if family == "modernbert":
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        first, last = "[CLS]", "[SEP]"
    else:
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        first, last = "<s>", "</s>"
    names = dict(
        zip(("pad_token", "unk_token", "mask_token"), [special[0], special[1], special[4]], strict=True)
    )
    if first == "<s>":
        names = {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
        names |= {"bos_token": "<s>", "eos_token": "</s>"}
    if family == "xlm-roberta":
        backend = Tokenizer(models.Unigram())
        backend.normalizer = normalizers.NFKC()
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Metaspace()
        trainer: Any = trainers.UnigramTrainer(
            vocab_size=100, special_tokens=special, unk_token="<unk>", show_progress=False
        )
    else:
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    backend.train_from_iterator(_TEXTS, trainer)
    ends = [(first, backend.token_to_id(first)), (last, backend.token_to_id(last))]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=f"{first} $A {last} {last} $B {last}", special_tokens=ends
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=["input_ids", "attention_mask"],
        cls_token=first,
        sep_token=last,
        **names,
    )


def _masked_language_model(family: str, size: int, padding: int) -> Any:
    """Random weights, large enough that about half of all logits are positive."""
    import transformers

    shape: dict[str, Any] = {
        "vocab_size": size,
        "hidden_size": 16,
        "num_hidden_layers": 2 if family == "modernbert" else 1,  # it alternates local and global attention
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": _LENGTH + padding + 1,
        "initializer_range": 0.3,
        "pad_token_id": padding,
    }
    tokens = {f"{name}_token_id": 2 for name in ("bos", "eos", "cls", "sep")}
    if family == "bert":
        return transformers.BertForMaskedLM(transformers.BertConfig(**shape))
    if family == "distilbert":
        settings = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "initializer_range": 0.3}
        config: Any = transformers.DistilBertConfig(
            vocab_size=size, max_position_embeddings=_LENGTH, pad_token_id=padding, **settings
        )
        return transformers.DistilBertForMaskedLM(config)
    if family == "roberta":
        return transformers.RobertaForMaskedLM(
            transformers.RobertaConfig(**shape, bos_token_id=0, eos_token_id=2)
        )
    if family == "xlm-roberta":
        config = transformers.XLMRobertaConfig(**shape, bos_token_id=0, eos_token_id=2)
        return transformers.XLMRobertaForMaskedLM(config)
    config = transformers.ModernBertConfig(
        **shape, **tokens, local_attention=8, global_attn_every_n_layers=2, decoder_bias=True
    )
    return transformers.ModernBertForMaskedLM(config)
