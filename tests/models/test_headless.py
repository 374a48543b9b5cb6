"""SPLADE encoders from models without a head: decoder LMs that look both ways, and bare encoders."""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from lexforge.losses import NeuralSparseLoss
from lexforge.models import (
    build_dense,
    build_inference_free,
    build_splade,
    has_language_model_head,
    head_is_trained,
    load_encoder,
    restrict_output_vocabulary,
    saved_prompt,
    scale_head,
    unfuse_splade_head,
    vocabulary_size,
)
from lexforge.models.fingerprint import fingerprint
from lexforge.models.structure import splade_decoders
from lexforge.sparsity import trim_documents
from lexforge.training import SpladeTrainer, TrainingSettings

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
TEXTS = ["sort a list of words", "한국 서울 검색", "the index", "open a file and read it"]


def save(model: PreTrainedModel, tiny: Path, folder: Path) -> Path:
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny).save_pretrained(folder)
    return folder


def decoder_lm(family: str, tiny: Path, folder: Path, *, tied: bool = False) -> Path:
    """Save a random decoder LM of a family."""
    config, model = FAMILIES[family]
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vocab_size": len(AutoTokenizer.from_pretrained(tiny)), "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32,
        "max_position_embeddings": 64, "initializer_range": 0.2, "tie_word_embeddings": tied,
    }  # fmt: skip
    return save(model(config(**settings)), tiny, folder)


def rows(model: SparseEncoder, texts: list[str] = TEXTS) -> np.ndarray:
    return model.encode(texts, convert_to_sparse_tensor=False, show_progress_bar=False).cpu().numpy()


@pytest.mark.parametrize(("family", "tied"), [*((family, False) for family in FAMILIES), ("qwen3", True)])
def test_a_decoder_lm_computes_splade_of_its_own_logits_seen_both_ways(
    family: str, tied: bool, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """The oracle is the language model of transformers itself, eager and with a mask of zeros, in which every
    token sees every other one; then the formula in numpy.
    """
    folder = decoder_lm(family, tiny_checkpoint, tmp_path / family, tied=tied)
    fused = build_splade(folder, device="cpu")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    language_model = FAMILIES[family][1].from_pretrained(folder, attn_implementation="eager").eval()
    for text, row in zip(TEXTS, rows(fused), strict=True):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        everything = torch.zeros(1, 1, ids.shape[1], ids.shape[1])  # added to the attention scores
        mask: Any = everything
        if family == "qwen2" or family == "qwen3":  # they take a mask per kind of attention
            mask = {"full_attention": everything}
        with torch.no_grad():
            logits = language_model(input_ids=ids, attention_mask=mask).logits[0].numpy()
        np.testing.assert_allclose(row, np.log1p(np.maximum(logits, 0)).max(axis=0), atol=1e-5)  # float32
    plain = rows(unfuse_splade_head(fused))
    np.testing.assert_allclose(rows(build_splade(folder, device="cpu")), plain, atol=1e-5)
    alone = np.concatenate([rows(fused, [text]) for text in TEXTS])
    np.testing.assert_allclose(plain, alone, atol=1e-5)  # padding changes nothing


@pytest.mark.parametrize("family", FAMILIES)
def test_a_decoder_lm_is_saved_in_stock_modules(family: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Whoever receives it has sentence-transformers only, without remote code: and gets equal embeddings."""
    model = build_splade(decoder_lm(family, tiny_checkpoint, tmp_path / "lm"), texts=TEXTS, device="cpu")
    model.save_pretrained(str(tmp_path / "model"))
    named = [module["type"] for module in json.loads((tmp_path / "model/modules.json").read_text())]
    assert all(name.startswith("sentence_transformers.") for name in named)
    stock = SparseEncoder(str(tmp_path / "model"), device="cpu")
    np.testing.assert_allclose(rows(stock), rows(model), atol=1e-5)  # another order of summation
    again = build_splade(tmp_path / "model", texts=["other", "texts"], device="cpu")
    np.testing.assert_allclose(rows(again), rows(model), atol=1e-6)  # a trained scale is not set anew


def test_a_tokenizer_without_padding(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Decoder LMs come without a token for it: the end of a text serves, which the mask hides."""
    folder = decoder_lm("llama", tiny_checkpoint, tmp_path / "lm")
    rules = AutoTokenizer.from_pretrained(folder).backend_tokenizer
    for file in [*folder.glob("token*"), *folder.glob("vocab*")]:
        file.unlink()
    PreTrainedTokenizerFast(tokenizer_object=rules, unk_token="[UNK]").save_pretrained(folder)
    with pytest.raises(ValueError, match="has neither a token for padding nor one for the end"):
        build_splade(folder, device="cpu")
    PreTrainedTokenizerFast(tokenizer_object=rules, eos_token="[SEP]").save_pretrained(folder)
    model = build_splade(folder, device="cpu")
    model.save_pretrained(str(tmp_path / "saved"))
    for loaded in (model, SparseEncoder(str(tmp_path / "saved"), device="cpu")):
        alone = np.concatenate([rows(loaded, [text]) for text in TEXTS])
        np.testing.assert_allclose(rows(loaded), alone, atol=1e-5)  # padded and not


def test_a_bare_encoder_decodes_by_its_embeddings(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The oracle is the matrix product of the encoder's states and its embedding matrix, by hand."""
    BertForMaskedLM.from_pretrained(tiny_checkpoint).bert.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_checkpoint).save_pretrained(tmp_path)
    model = build_splade(tmp_path, device="cpu")
    encoder, tokenizer = BertModel.from_pretrained(tmp_path).eval(), AutoTokenizer.from_pretrained(tmp_path)
    matrix = encoder.get_input_embeddings().weight.detach().numpy()
    for text, row in zip(TEXTS, rows(model), strict=True):
        with torch.no_grad():
            states = encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy()
        expected = np.log1p(np.maximum(states @ matrix.T, 0)).max(axis=0)
        np.testing.assert_allclose(row, expected, atol=1e-4)  # values of order 10 in float32
    assert vocabulary_size(model) == len(matrix)


def test_the_scale_is_set_from_texts(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """By definition: so many terms on average, of a mean logit of 1, counted on the vectors. A term whose
    largest logit is the same in all texts says nothing, and starts inactive.
    """
    folder = decoder_lm("llama", tiny_checkpoint, tmp_path)
    before = rows(build_splade(folder, device="cpu"))
    assert (before > 0).mean() > 0.5, "most terms are active in every text"
    for fused in (True, False):
        model = build_splade(folder, fused=fused, device="cpu")
        with torch.no_grad():
            model[1].linear.weight[7] = 0  # the same in all texts
            model[1].linear.bias[7] = 50.0
        scale_head(model, TEXTS, active_terms=9)
        found = rows(model)
        assert (found > 0).sum() == 9 * len(TEXTS)
        assert np.expm1(found[found > 0]).mean() == pytest.approx(1, rel=1e-3)  # float32
        assert not found[:, 7].any()


@pytest.mark.parametrize(
    ("texts", "settings", "message"),
    [
        (TEXTS, {"active_terms": 0}, r"active_terms must lie in \[1, \d+\].*received 0 and 64"),
        (["same", "same", " "], {}, "two different texts or more; received 1"),
    ],
)
def test_a_scale_that_cannot_be_set(
    texts: list[str], settings: dict, message: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Each error says what was received."""
    model = build_splade(decoder_lm("llama", tiny_checkpoint, tmp_path), device="cpu")
    with pytest.raises(ValueError, match=message):
        scale_head(model, texts, **settings)


def test_a_head_without_a_scale_is_named_in_the_log(
    tiny_checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its vectors are nearly dense, and nothing else would say why a search is slow."""
    folder = decoder_lm("llama", tiny_checkpoint, tmp_path)
    with caplog.at_level(logging.WARNING, logger="lexforge.models.splade"):
        build_splade(folder, texts=TEXTS, device="cpu")
        assert "has no head of a masked language model" not in caplog.text
        build_splade(folder, device="cpu")
    assert "has no head of a masked language model" in caplog.text


def test_a_decoder_lm_trains_and_takes_the_options_of_an_encoder(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Some steps of the trainer lower the loss and change encoder and decoder; a restricted vocabulary stays,
    and queries without inference work.
    """
    model = build_splade(decoder_lm("qwen3", tiny_checkpoint, tmp_path / "lm"), texts=TEXTS, device="cpu")
    restrict_output_vocabulary(model, model.tokenizer.all_special_ids)
    words = "sort list array search index query document vector sparse dense token model".split()
    data = [{"anchor": word, "positive": f"the {word} of a {other}"} for word in words for other in words[:2]]
    arguments = TrainingSettings(
        steps=12, batch_size=8, gradient_accumulation_steps=1, learning_rate=3e-3, precision="fp32",
        logging_steps=4,
    ).arguments(tmp_path / "run", save_strategy="no", disable_tqdm=True)  # fmt: skip
    before = {name: value.clone() for name, value in model.state_dict().items()}
    loss = NeuralSparseLoss(model, distillation_weight=0.0, similarity="dot", temperature=1.0)
    trainer = SpladeTrainer(model, loss, args=arguments, train_dataset=Dataset.from_list(data))
    trainer.train()
    losses = [line["loss/infonce"] for line in trainer.state.log_history if "loss/infonce" in line]
    assert losses[-1] < losses[0]
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert {"1.linear.weight", "1.linear.bias"} <= changed
    assert any(name.startswith("0.") and "self_attn" in name for name in changed)
    assert not rows(model.eval())[:, model.tokenizer.all_special_ids].any()
    trim_documents(model, TEXTS, 6)
    assert (rows(model) > 0).sum(axis=1).mean() == pytest.approx(6, abs=0.5)
    asymmetric = build_inference_free(model, np.ones(vocabulary_size(model)))
    asymmetric.save_pretrained(str(tmp_path / "asymmetric"))
    loaded = build_splade(tmp_path / "asymmetric", device="cpu")
    vectors = loaded.encode_document(TEXTS, convert_to_sparse_tensor=False, show_progress_bar=False)
    np.testing.assert_allclose(vectors.numpy(), rows(model), atol=1e-5)  # float32


def test_other_families_get_one_clear_line(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """transformers would list the names of all its configurations."""
    size = len(AutoTokenizer.from_pretrained(tiny_checkpoint))
    model = T5ForConditionalGeneration(
        T5Config(vocab_size=size, d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2)
    )
    folder = save(model, tiny_checkpoint, tmp_path)
    with pytest.raises(ValueError, match=r"is a model of type 't5' \(T5Config\), which does not") as caught:
        build_splade(folder)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_damaged_checkpoints_are_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """transformers would fill the missing weights with random numbers."""
    llama = LlamaForCausalLM.from_pretrained(decoder_lm("llama", tiny_checkpoint, tmp_path / "llama"))
    weights = {name: value for name, value in llama.state_dict().items() if "layers.1.mlp" not in name}
    llama.save_pretrained(tmp_path / "llama", state_dict=weights)
    with pytest.raises(ValueError, match="not a complete model: it misses 3 weights"):
        build_splade(tmp_path / "llama")
    masked = BertForMaskedLM(BertConfig.from_pretrained(tiny_checkpoint))
    weights = {name: value for name, value in masked.state_dict().items() if "transform" not in name}
    masked.save_pretrained(tmp_path / "bert", state_dict=weights)
    with pytest.raises(ValueError, match=r"not a complete masked language model: BertForMaskedLM misses 4"):
        build_splade(tmp_path / "bert")


def test_a_dense_encoder_gives_its_transformer_and_its_prompts(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """As E5 is saved: a prompt for each kind of text, pooling, normalization, a length of its own."""
    dense = build_dense(tiny_checkpoint, max_seq_length=20, device="cpu")
    dense.append(Normalize())
    dense.prompts = {"query": "query: ", "passage": "passage: "}
    dense.save_pretrained(str(tmp_path / "dense"))
    model = build_splade(tmp_path / "dense", device="cpu", texts=TEXTS)
    assert [type(module).__name__ for module in model] == ["Transformer", "Dense", "SpladePooling"]
    assert model.max_seq_length == 20
    assert saved_prompt(model, "query") == "query: "
    assert saved_prompt(model, "document") == "passage: "
    weight = dense[0].model.get_input_embeddings().weight
    assert torch.equal(model[0].model.get_input_embeddings().weight, weight)
    ids = model.preprocess(["list"])
    with torch.no_grad():
        states = model[0](dict(ids))["token_embeddings"]
        expected = dense[0](dict(ids))["token_embeddings"]
    torch.testing.assert_close(states, expected)
    model.save_pretrained(str(tmp_path / "sparse"))
    loaded = SparseEncoder(str(tmp_path / "sparse"), device="cpu")
    assert loaded.prompts["passage"] == loaded.prompts["document"] == "passage: "
    np.testing.assert_allclose(rows(loaded), rows(model), atol=1e-5)
    # A pooler that was not saved has other random weights at each load, with a warning, and no gradient.
    report = AutoModel.from_pretrained(tmp_path / "sparse", output_loading_info=True)[1]
    assert not report["missing_keys"]
    one, other = (load_encoder(str(tmp_path / "sparse"), device="cpu") for _ in range(2))
    assert fingerprint(one) == fingerprint(other)
    one(one.preprocess(["a list of words"]))["sentence_embedding"].sum().backward()
    assert all(parameter.grad is not None for parameter in one.parameters() if parameter.requires_grad)


def test_a_dense_encoder_without_a_transformer_is_refused(tmp_path: Path, tiny_checkpoint: Path) -> None:
    """A table of vectors has no states of tokens that a head could read."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    static = SentenceTransformer(
        modules=[StaticEmbedding(tokenizer._tokenizer, embedding_dim=8)], device="cpu"
    )
    static.save_pretrained(str(tmp_path / "static"))
    with pytest.raises(ValueError, match=r"that begins with .*StaticEmbedding, which is no SPLADE encoder"):
        build_splade(tmp_path / "static")


def test_a_trained_headless_encoder_keeps_its_scale(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """It is saved with its Dense; when it is trained further, its head counts as trained by its few terms."""
    bare = BertModel.from_pretrained(tiny_checkpoint)
    bare.save_pretrained(tmp_path / "bare")
    AutoTokenizer.from_pretrained(tiny_checkpoint).save_pretrained(tmp_path / "bare")
    model = build_splade(tmp_path / "bare", device="cpu")
    assert not has_language_model_head(model)
    assert not head_is_trained(model, TEXTS)
    scale_head(model, TEXTS, active_terms=5).save_pretrained(str(tmp_path / "saved"))
    assert head_is_trained(build_splade(tmp_path / "saved", device="cpu"), TEXTS)


def test_a_small_dense_encoder_has_no_trained_head(tiny_dense: SentenceTransformer, tmp_path: Path) -> None:
    """Twice the words of a long text are more than its vocabulary, so it counted as trained: nothing was
    scaled, and `lexforge adapt` took the encoder for a SPLADE.
    """
    tiny_dense.save_pretrained(str(tmp_path / "dense"))
    model = build_splade(tmp_path / "dense", max_seq_length=64, device="cpu")
    long = [" ".join(model.tokenizer.convert_ids_to_tokens(list(range(5, 60))))]
    assert not head_is_trained(model, long)
    assert head_is_trained(scale_head(model, TEXTS, active_terms=5), TEXTS)


def test_the_head_of_an_asymmetric_encoder_is_judged_by_its_documents(tiny_splade: SparseEncoder) -> None:
    """The queries of an inference-free one are looked up, and its one module is a Router."""
    model = build_inference_free(copy.deepcopy(tiny_splade), np.ones(len(tiny_splade.tokenizer)))
    assert not head_is_trained(model, TEXTS)
    splade_decoders(model)[0].bias.data -= 50
    assert head_is_trained(model, TEXTS)
