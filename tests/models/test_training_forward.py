"""Training without padding and with fast operators gives the states and gradients of plain training."""

from __future__ import annotations

import copy
import pickle
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SparseEncoder, SparseEncoderTrainer
from sentence_transformers.sparse_encoder import SparseEncoderTrainingArguments
from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss
from small_runs import without_dropout
from torch import Tensor

from lexforge.kernels.encoder import attention, dropout
from lexforge.models import fuse_encoder, fuse_splade_head, training_forward
from lexforge.models.structure import checkpoint_layers
from lexforge.models.training_forward import FastOperators, cut, seconds_of_formats, training_forwards

# In an order that is not its own inverse, so that vectors which came back in the wrong order would show.
TEXTS = [
    "tree " * 20,
    "sort",
    "a vector of tokens in the list of a graph " * 3,
    "the index of a tree",
    "list",
]


def widths(model: Any) -> list[int]:
    """The widths of the batches that the transformer of a model encodes, as they come."""
    seen: list[int] = []
    words = model[0].model.get_input_embeddings()
    words.register_forward_hook(lambda _, args, output: seen.append(output.shape[1]))
    return seen


def gradients(model: Any, features: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """The vectors of a batch, and the gradient of a weighted sum of them."""
    without_dropout(model).zero_grad()
    vectors = model(dict(features))["sentence_embedding"]
    (vectors * torch.linspace(-1, 1, vectors.numel()).view_as(vectors)).sum().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return vectors.detach(), found


def assert_same(model: Any, features: dict[str, Any]) -> None:
    """Both ways of encoding agree up to rounding, and so do their gradients."""
    plain = gradients(model, features)
    training_forwards(model)
    ours = gradients(model, features)
    torch.testing.assert_close(ours[0], plain[0], rtol=1e-4, atol=1e-5)
    assert ours[1].keys() == plain[1].keys()
    for name, gradient in plain[1].items():
        torch.testing.assert_close(
            ours[1][name], gradient, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("vector_type", ["sparse", "dense"])
def test_states_and_gradients_are_those_of_the_padded_batch(
    vector_type: str, side: str, fresh: Any, tiny_dense: SentenceTransformer
) -> None:
    """Padding must change nothing; on which side it stands depends on the tokenizer."""
    model = fuse_splade_head(fresh()) if vector_type == "sparse" else copy.deepcopy(tiny_dense)
    model.tokenizer.padding_side = side
    features = model.preprocess(TEXTS)
    if side == "left":  # a text keeps its positions, which a model with learned ones counts from the left
        features["position_ids"] = (features["attention_mask"].cumsum(1) - 1).clamp_min(0)
    seen = widths(model)
    assert_same(model, features)
    whole, *pieces = seen
    assert len(pieces) > 1
    assert max(pieces) == whole
    assert min(pieces) < whole / 2


def test_padding_on_the_left_is_kept_where_positions_are_learned(fresh: Any) -> None:
    """They are counted from the beginning of the batch, padding included."""
    model = fuse_splade_head(fresh())
    model.tokenizer.padding_side = "left"
    seen = widths(model)
    assert_same(model, model.preprocess(TEXTS))
    assert len(set(seen)) == 1


def test_a_training_has_the_losses_of_a_padded_one(fresh: Any, make_trainer: Any, tmp_path: Path) -> None:
    """Six steps of V26 with every term, once with the forward of sentence-transformers."""

    def losses(padded: bool) -> list[float]:
        model = without_dropout(fresh())
        trainer = make_trainer(model, tmp_path / str(padded))
        seen = widths(model)
        if padded:
            for module in model.modules():
                if type(vars(module).get("forward")).__name__ == "TrainingForward":
                    del vars(module)["forward"]
        trainer.train()
        # Two columns and candidates that are merged: two forwards in each of six steps.
        assert padded or len(seen) >= 12
        return [line["loss"] for line in trainer.state.log_history if "loss" in line]

    assert losses(padded=False) == pytest.approx(losses(padded=True), rel=1e-4)


@pytest.mark.parametrize("bf16", [False, True])
def test_it_serves_the_stock_trainer(
    fresh: Any, tmp_path: Path, training_rows: list[dict[str, str]], bf16: bool
) -> None:
    """Two lines in a script of sentence-transformers; the losses of the plain model are the oracle."""

    def losses(fused: bool) -> list[float]:
        model = without_dropout(fresh())
        if fused:
            assert fuse_splade_head(fuse_encoder(model)) is model
        arguments = SparseEncoderTrainingArguments(
            str(tmp_path),
            max_steps=3,
            logging_steps=1,
            learning_rate=1e-4,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            bf16=bf16,
        )
        loss = SpladeLoss(model, SparseMultipleNegativesRankingLoss(model), 1e-3)
        trainer = SparseEncoderTrainer(
            model, arguments, train_dataset=Dataset.from_list(training_rows), loss=loss
        )
        trainer.train()
        return [line["loss"] for line in trainer.state.log_history if "loss" in line]

    assert losses(True) == pytest.approx(losses(False), rel=0.03 if bf16 else 1e-3)


@pytest.mark.filterwarnings(
    "ignore:Dynamo detected a call:UserWarning"
)  # of older versions, in the plain model
def test_a_graph_is_compiled_without_a_break(fresh: Any) -> None:
    """Compiled training runs as before: a look at the padding would break the graph."""
    model, plain = fuse_encoder(without_dropout(fresh()).train()), without_dropout(fresh()).train()
    features = model.preprocess(TEXTS)
    compiled = torch.compile(model[0], backend="eager", fullgraph=True)
    states, expected = (each(dict(features))["token_embeddings"] for each in (compiled, plain[0]))
    torch.testing.assert_close(states, expected)


def test_what_cannot_be_cut_runs_as_before(fresh: Any) -> None:
    """Evaluation keeps its bits; masks with holes and tensors of other shapes stay whole."""
    model = fuse_splade_head(fresh())
    features = model.preprocess(TEXTS)
    training_forwards(model)
    seen = widths(model)
    model.eval()(dict(features))
    model.train()
    holes = features | {"attention_mask": features["attention_mask"].clone()}
    holes["attention_mask"][0, 0] = 0
    model(holes)
    model(features | {"attention_mask": features["attention_mask"].clone(), "others": torch.ones(3, 7)})
    model[0].model.config.output_hidden_states = True
    model(dict(features))
    assert seen == [features["input_ids"].shape[1]] * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_dropout_and_attention_are_those_of_the_formulas(
    fresh: Any, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """With the dropout of the model: the compiled passes and PyTorch's operators, for the same seeds."""
    model = fuse_splade_head(fresh()).train()
    (forward,) = training_forwards(model)
    forward.dtype = dtype
    features = model.preprocess(TEXTS)
    calls = []

    def vectors(impl: str) -> Tensor:
        for name, function in (("attention", attention), ("dropout", dropout)):

            def call(*arguments: Any, name: str = name, function: Any = function) -> Tensor:
                calls.append(name)
                return function(*arguments, impl=impl).to(arguments[0].dtype)

            monkeypatch.setattr(training_forward, name, call)
        torch.manual_seed(0)
        return model(dict(features))["sentence_embedding"]

    found, expected = vectors("compiled"), vectors("reference")
    assert calls.count("attention") == 2 * len(widths_of_pieces(features)) * 2  # both ways, two layers
    assert calls.count("dropout") == 2 * len(widths_of_pieces(features)) * 5  # embeddings, and two a layer
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(found, expected, **close)
    torch.manual_seed(1)
    other = model(dict(features))["sentence_embedding"]
    assert (other - found).abs().max() > 0.1


def widths_of_pieces(features: dict[str, Any]) -> list[int]:
    lengths = np.sort(features["attention_mask"].sum(dim=1).numpy())
    return [width for _, _, width in cut(lengths, training_forward.TOKENS_OF_A_PIECE)]


def test_linear_layers_share_the_cast_of_one_input() -> None:
    """Their results are those of autocast; a tensor that was changed in place is cast again."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 8) for _ in range(3)]
    x = torch.randn(4, 8)

    def results() -> list[Tensor]:
        y = x.clone().requires_grad_() * 1  # autocast itself keeps the cast of a leaf, even a stale one
        found = [layer(y) for layer in layers]
        (gradient,) = torch.autograd.grad(sum(one.float().square().sum() for one in found), y)
        with torch.no_grad():
            y.mul_(2)
        return [gradient, *found, layers[0](y)]

    with torch.autocast("cpu", torch.bfloat16):
        expected = results()
        casts: list[Tensor] = []
        with (
            torch.autograd.graph.saved_tensors_hooks(lambda t: casts.append(t) or t, lambda t: t),
            FastOperators(),
        ):
            found = results()
    torch.testing.assert_close(found[0], expected[0], rtol=0.02, atol=0.02)  # summed in bfloat16
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert torch.equal(one, other)
    inputs = {t.data_ptr() for t in casts if t.dtype == torch.bfloat16 and t.shape == (4, 8)}
    assert len(inputs) == 2  # of seven that autocast alone would make: before and after the change


def test_the_random_state_repeats_a_batch(fresh: Any) -> None:
    """Gradient caching encodes a batch twice, first without gradients, and must drop the same elements."""
    model = fuse_splade_head(fresh()).train()
    training_forwards(model)
    features = model.preprocess(TEXTS)
    torch.manual_seed(0)
    with torch.no_grad():
        first = model(dict(features))["sentence_embedding"]
    torch.manual_seed(0)
    assert torch.equal(model(dict(features))["sentence_embedding"], first)


def test_checkpointed_layers_are_encoded_by_the_same_operators_twice(fresh: Any) -> None:
    """The backward pass encodes a layer again; other operators there would drop other elements."""
    found = []
    for checkpoints in (False, True):
        model = fuse_splade_head(fresh()).train()
        training_forwards(model)
        if checkpoints:
            checkpoint_layers(model)
        features = model.preprocess(TEXTS)
        torch.manual_seed(0)
        vectors = model(dict(features))["sentence_embedding"]
        vectors.sum().backward()
        again = model[0].model.get_input_embeddings().weight.grad.clone()
        model.zero_grad()
        torch.manual_seed(0)
        model(dict(features))["sentence_embedding"].sum().backward()
        assert torch.equal(model[0].model.get_input_embeddings().weight.grad, again)
        found.append(again)
    assert (found[0] - found[1]).abs().max() > 0  # other random numbers, and so another gradient


def test_what_the_fast_operators_do_not_offer_is_left_to_pytorch() -> None:
    """Masks that are no bool, other formats, grouped queries and a causal flag give PyTorch's own results."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
    wide = key.repeat_interleave(2, dim=1)
    bias = torch.randn(2, 4, 5, 5)
    per_head = torch.rand(2, 4, 5, 5) > 0.3
    per_head[..., 0] = True
    calls: list[tuple[tuple[Tensor, ...], dict[str, Any]]] = [
        ((query, wide, wide), {"attn_mask": bias}),
        ((query, wide, wide), {"attn_mask": per_head}),
        ((query, wide, wide), {"is_causal": True}),
        ((query, key, key), {"enable_gqa": True}),
        ((query.double(), wide.double(), wide.double()), {}),
        ((query[0], wide[0], wide[0]), {}),
    ]
    for tensors, options in calls:
        expected = F.scaled_dot_product_attention(*tensors, **options)
        with FastOperators():
            found = F.scaled_dot_product_attention(*tensors, **options)
        assert torch.equal(found, expected)
    x = torch.randn(6, 50)
    for function, options in ((F.dropout, {"training": False}), (F.dropout, {"p": 0.0}), (F.dropout1d, {})):
        torch.manual_seed(1)
        expected = function(x, **options)
        torch.manual_seed(1)
        with FastOperators():
            assert torch.equal(function(x, **options), expected)
    with FastOperators():
        y = x.clone()
        assert F.dropout(y, 0.5, True, True) is y


def test_a_model_stays_what_it_was(fresh: Any, tmp_path: Path) -> None:
    """Copies and pickles work, saved models know nothing of it, and a second call changes nothing."""
    model = fuse_splade_head(fresh())
    first, second = training_forwards(model), training_forwards(model)
    assert first == second
    assert [forward.transformer for forward in first] == [model[0]]
    twin = copy.deepcopy(model)
    (forward,) = training_forwards(twin)
    assert forward.transformer is twin[0]
    assert training_forwards(pickle.loads(pickle.dumps(model)))[0].transformer is not model[0]
    model.save_pretrained(str(tmp_path / "model"))
    loaded = SparseEncoder(str(tmp_path / "model"), device="cpu")
    assert "forward" not in vars(loaded[0])
    assert loaded.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("cost", [0, 3, 40])
def test_the_pieces_take_the_least_work(cost: int) -> None:
    """The oracle tries every way of cutting."""
    generator = np.random.default_rng(cost)
    for _ in range(20):
        lengths = np.sort(generator.integers(1, 30, size=generator.integers(1, 9)))
        best = min(
            sum(
                (b - a) * lengths[b - 1] + cost
                for a, b in zip((0, *cuts), (*cuts, len(lengths)), strict=True)
            )
            for count in range(len(lengths))
            for cuts in combinations(range(1, len(lengths)), count)
        )
        pieces = cut(lengths, cost)
        assert [first for first, _, _ in pieces] == [0, *(end for _, end, _ in pieces[:-1])]
        assert pieces[-1][1] == len(lengths)
        assert all(width == lengths[end - 1] for _, end, width in pieces)
        assert sum((end - first) * width + cost for first, end, width in pieces) == best


def test_timing_leaves_no_trace(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timed encoder has no gradient, its modes and the random state are as they were."""
    assert bool(seconds_of_formats(fresh()[0])) == torch.ops.mkldnn._is_mkldnn_bf16_supported()
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    model = fuse_splade_head(fresh()).eval()
    model[0].model.train()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    seconds = seconds_of_formats(model[0])
    assert set(seconds) == {"float32", "bfloat16"}
    assert all(one > 0 for one in seconds.values())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
