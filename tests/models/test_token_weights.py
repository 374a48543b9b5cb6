"""The sparse head of BGE-M3: values, gradients, layouts, and everything else that takes it as it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SparseEncoder
from transformers import AutoModel, AutoTokenizer

from lexforge.corpus import encode
from lexforge.evaluation import RetrievalEvaluator
from lexforge.losses import NeuralSparseLoss
from lexforge.models import (
    TokenWeights,
    build_splade,
    dense_encoder,
    embedding_dimension,
    fuse_splade_head,
    load_encoder,
    restrict_output_vocabulary,
    save_flag_embedding,
    vocabulary_size,
)
from lexforge.training import SpladeTrainer, TrainingSettings

TEXTS = ["list of the list", "sort a tree of words", "search", "the index of the index of a graph zz"]


def features_of(model: SparseEncoder, texts: list[str] = TEXTS) -> dict[str, Any]:
    return dict(model.preprocess(texts))


def oracle(folder: Path, texts: list[str], state: dict[str, torch.Tensor]) -> tuple[torch.Tensor, Any]:
    """The vectors `[B, V]` by a loop over the tokens of each text, and the embeddings of the encoder."""
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    model.eval()
    rows = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        states = model(input_ids=ids).last_hidden_state[0]  # [L, D]
        weights: dict[int, torch.Tensor] = {}
        for term, hidden in zip(ids[0].tolist(), states, strict=True):
            weight = (state["weight"][0] @ hidden + state["bias"][0]).relu()
            if term not in tokenizer.all_special_ids and (term not in weights or weight > weights[term]):
                weights[term] = weight
        zero = torch.zeros(())
        rows.append(torch.stack([weights.get(term, zero) for term in range(model.config.vocab_size)]))
    return torch.stack(rows), model.embeddings.word_embeddings.weight


def test_vectors_and_gradients_are_those_of_a_loop(tiny_m3: Path) -> None:
    """The vectors must be BGE-M3's, and training must move what a tensor [B, L, V] would have moved."""
    model = build_splade(tiny_m3, device="cpu")
    vectors = model(features_of(model))["sentence_embedding"]
    state = {name: value.requires_grad_() for name, value in torch.load(tiny_m3 / "sparse_linear.pt").items()}
    expected, embeddings = oracle(tiny_m3, TEXTS, state)
    torch.testing.assert_close(vectors, expected, atol=1e-6, rtol=1e-5)  # padded against single texts
    active = (vectors > 0).sum(1)
    assert active.sum() > 10, "a test of zeros alone would show nothing"
    weight = torch.linspace(-1, 1, vectors.numel()).view_as(vectors)
    (vectors * weight).sum().backward()
    (expected * weight).sum().backward()
    head = model[1].sparse_linear
    for found, wanted in (
        (head.weight.grad, state["weight"].grad),
        (head.bias.grad, state["bias"].grad),
        (model[0].model.embeddings.word_embeddings.weight.grad, embeddings.grad),
    ):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_a_repeated_term_has_the_largest_of_its_weights() -> None:
    """Worked by hand: states of width 1, w = 2, b = -1; term 3 stands twice, term 0 is special."""
    head = TokenWeights(1, 5, special_token_ids=[0], colbert_dimension=1)
    with torch.no_grad():
        head.sparse_linear.weight.fill_(2.0)
        head.sparse_linear.bias.fill_(-1.0)
    features = {
        "input_ids": torch.tensor([[0, 3, 3, 4], [0, 2, 1, 1]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
        "token_embeddings": torch.tensor([[9.0, 1.0, 2.0, 0.25], [9.0, 0.75, 9.0, 9.0]]).unsqueeze(-1),
    }
    expected = torch.tensor([[0, 0, 0, 3.0, 0], [0, 0, 0.5, 0, 0]])
    torch.testing.assert_close(head(dict(features))["sentence_embedding"], expected)
    # The same two texts without padding, as flash attention takes them.
    flat = {
        "input_ids": torch.tensor([[0, 3, 3, 4, 0, 2]]),
        "token_embeddings": torch.tensor([[9.0, 1.0, 2.0, 0.25, 9.0, 0.75]]).unsqueeze(-1),
        "cu_seq_lens_q": torch.tensor([0, 4, 6]),
    }
    torch.testing.assert_close(head(flat)["sentence_embedding"], expected)


def test_special_tokens_without_an_embedding_are_no_mistake() -> None:
    """A tokenizer may have more of them than its encoder; no text holds them."""
    head = TokenWeights(4, 6, special_token_ids=[0, 9], colbert_dimension=2)
    assert head.counts.tolist() == [False, True, True, True, True, True]


def test_a_token_beyond_the_vocabulary_is_refused(tiny_m3: Path) -> None:
    """A token that was added to the encoder since would be written into the vector of the next text."""
    model = build_splade(tiny_m3, device="cpu")
    model.tokenizer.add_tokens(["foo"])
    model[0].model.resize_token_embeddings(len(model.tokenizer))
    with pytest.raises(IndexError, match="out of bounds"):
        model(features_of(model, ["search foo", "list"]))


def test_nothing_of_the_graph_has_a_place_per_token_and_term(tiny_m3: Path) -> None:
    """The tensor [B, L, V] is what the head is there to avoid, in the backward pass too."""
    model = build_splade(tiny_m3, device="cpu")
    features = features_of(model)
    entries = features["input_ids"].numel() * vocabulary_size(model)  # B * L * V
    largest = 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal largest
        largest = max(largest, tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(features)["sentence_embedding"].sum().backward()
    assert 0 < largest < entries


def test_the_encoder_is_what_its_files_say(tiny_m3: Path) -> None:
    """The widths, the similarity and the terms are read by losses, indexes and reports."""
    model = build_splade(tiny_m3, max_seq_length=16, device="cpu")
    assert isinstance(model[1], TokenWeights)
    assert vocabulary_size(model) == embedding_dimension(model) == len(model.tokenizer)
    assert (model.similarity_fn_name, model.max_seq_length) == ("dot", 16)
    assert fuse_splade_head(model) is model
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert not any("pooler" in name or "colbert" in name for name in trained), "they would get no gradient"
    # A dense name stays a dense encoder: its own files say so.
    assert isinstance(load_encoder(str(tiny_m3), device="cpu"), SentenceTransformer)


def test_a_bare_transformer_with_the_two_heads_is_taken_too(tiny_m3: Path, tmp_path: Path) -> None:
    """FlagEmbedding saves no modules.json of sentence-transformers unless it is told to."""
    bare = shutil.copytree(tiny_m3, tmp_path / "bare")
    for name in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        (bare / name).unlink()
    first, second = (build_splade(folder, device="cpu") for folder in (tiny_m3, bare))
    np.testing.assert_allclose(
        encode(first, TEXTS, "document").toarray(), encode(second, TEXTS, "document").toarray(), atol=1e-6
    )


def test_a_saved_encoder_is_the_same(tiny_m3: Path, tmp_path: Path) -> None:
    """It loads here without a question, and through sentence-transformers by whoever trusts this package."""
    model = build_splade(tiny_m3, device="cpu")
    model.save_pretrained(str(tmp_path / "saved"))
    with pytest.raises(ValueError, match="trust_remote_code"):
        SparseEncoder(str(tmp_path / "saved"), device="cpu")
    expected = encode(model, TEXTS, "document")
    for loaded in (
        load_encoder(str(tmp_path / "saved"), device="cpu"),
        build_splade(tmp_path / "saved", device="cpu"),
        SparseEncoder(str(tmp_path / "saved"), device="cpu", trust_remote_code=True),
    ):
        assert isinstance(loaded[1], TokenWeights)
        np.testing.assert_array_equal(encode(loaded, TEXTS, "document").toarray(), expected.toarray())
        torch.testing.assert_close(loaded[1].colbert_linear.weight, model[1].colbert_linear.weight)


def test_flag_embedding_reads_what_it_would_have_written(tiny_m3: Path, tmp_path: Path) -> None:
    """Its loader takes the encoder by AutoModel and both layers by name; the rest is the dense encoder."""
    model = build_splade(tiny_m3, device="cpu")
    with torch.no_grad():
        model[1].sparse_linear.weight.mul_(2)
    folder = save_flag_embedding(model, tmp_path / "m3")
    saved = {name: torch.load(folder / f"{name}.pt") for name in ("sparse_linear", "colbert_linear")}
    torch.nn.Linear(32, 1).load_state_dict(saved["sparse_linear"])
    before = torch.load(tiny_m3 / "colbert_linear.pt")
    torch.testing.assert_close(saved["colbert_linear"], before)
    torch.testing.assert_close(
        saved["sparse_linear"]["weight"], 2 * torch.load(tiny_m3 / "sparse_linear.pt")["weight"]
    )
    again = build_splade(folder, device="cpu")
    np.testing.assert_array_equal(
        encode(again, TEXTS, "query").toarray(), encode(model, TEXTS, "query").toarray()
    )
    dense = [SentenceTransformer(str(place), device="cpu").encode(TEXTS) for place in (tiny_m3, folder)]
    np.testing.assert_allclose(dense[0], dense[1], atol=1e-6)
    np.testing.assert_allclose(dense_encoder(model).encode(TEXTS), dense[0], atol=1e-6)
    with pytest.raises(FileExistsError):
        save_flag_embedding(model, folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"weight": torch.zeros(1, 31), "bias": torch.zeros(1)}, r"'weight': \[1, 31\]"),
        ({"weight": torch.zeros(2, 32), "bias": torch.zeros(2)}, "one weight per token; received 2"),
        ({"weight": torch.zeros(1, 32)}, r"received \{'weight': \[1, 32\]\}"),
        ([1], "received list"),
    ],
)
def test_a_file_of_another_layer_is_refused(
    content: Any, message: str, tiny_m3: Path, tmp_path: Path
) -> None:
    """A layer of another width would fail in the first batch, without the name of the file."""
    folder = shutil.copytree(tiny_m3, tmp_path / "m3")
    torch.save(content, folder / "sparse_linear.pt")
    with pytest.raises(ValueError, match=f"sparse_linear.pt of .*{message}"):
        build_splade(folder, device="cpu")


@pytest.mark.parametrize("content", [b"", b"garbage", b"cut short"])
def test_a_damaged_file_is_named(content: bytes, tiny_m3: Path, tmp_path: Path) -> None:
    """A download that broke off must not end in an error of pickle."""
    folder = shutil.copytree(tiny_m3, tmp_path / "m3")
    file = folder / "colbert_linear.pt"
    file.write_bytes(file.read_bytes()[:500] if content == b"cut short" else content)
    with pytest.raises(ValueError, match=r"colbert_linear.pt of .* is no file of tensors"):
        build_splade(folder, device="cpu")


def test_what_needs_a_bias_per_term_says_so(tiny_m3: Path, tiny_splade: SparseEncoder) -> None:
    """The head has none; the message must name it, and not ask for a SPLADE head."""
    model = build_splade(tiny_m3, device="cpu")
    with pytest.raises(ValueError, match=r"TokenWeights.* has no decoder"):
        restrict_output_vocabulary(model, [5])
    with pytest.raises(ValueError, match="a Transformer followed by TokenWeights"):
        dense_encoder(tiny_splade)


def test_it_trains_resumes_and_is_searched(
    tiny_m3: Path, tmp_path: Path, training_rows: list[dict[str, str]]
) -> None:
    """The trainer, its checkpoints and the evaluator with its inverted index take the head as it is."""

    def trainer(folder: Path) -> SpladeTrainer:
        torch.manual_seed(0)
        model = build_splade(tiny_m3, device="cpu")
        loss = NeuralSparseLoss(
            model, similarity="dot", temperature=1.0, flops_weight=0.01, minimum_activation_weight=0,
            self_reconstruction_weight=0, positive_activation_weight=0, triplet_margin_weight=0,
            distillation_weight=0, mini_batch_size=3,
        )  # fmt: skip
        settings = TrainingSettings(
            steps=8, batch_size=6, gradient_accumulation_steps=1, learning_rate=1e-3, precision="fp32",
            save_steps=4, logging_steps=1,
        )  # fmt: skip
        arguments = settings.arguments(folder, disable_tqdm=True)
        return SpladeTrainer(model, loss, args=arguments, train_dataset=Dataset.from_list(training_rows))

    whole = trainer(tmp_path / "whole")
    before = whole.model[1].sparse_linear.weight.detach().clone()
    kept = whole.model[1].colbert_linear.weight.detach().clone()
    whole.train()
    assert not torch.equal(whole.model[1].sparse_linear.weight, before)
    assert torch.equal(whole.model[1].colbert_linear.weight, kept)
    losses = [line["loss"] for line in whole.state.log_history if "loss" in line]
    assert losses[-1] < losses[0]

    resumed = trainer(tmp_path / "whole")
    shutil.rmtree(tmp_path / "whole" / "checkpoint-8")
    resumed.train(resume_from_checkpoint=True)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name

    corpus = {str(place): row["positive"] for place, row in enumerate(training_rows)}
    queries = {str(place): row["anchor"] for place, row in enumerate(training_rows)}
    evaluator = RetrievalEvaluator(queries, corpus, {name: {name: 1} for name in queries})
    start, trained = (
        evaluator.evaluate(model) for model in (build_splade(tiny_m3, device="cpu"), whole.model)
    )
    assert trained.metrics["nDCG@10"] > start.metrics["nDCG@10"]


def test_the_special_tokens_are_saved(tiny_m3: Path, tmp_path: Path) -> None:
    """Who loads the model must not depend on the tokenizer of another version of transformers."""
    model = build_splade(tiny_m3, device="cpu")
    model.save_pretrained(str(tmp_path))
    config = json.loads((tmp_path / "1_TokenWeights" / "config.json").read_text())
    assert config["special_token_ids"] == sorted(model.tokenizer.all_special_ids)
