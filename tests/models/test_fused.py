"""The fused head is the plain head: same vectors, gradients, files and names, for every backbone."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import warnings
from pathlib import Path

import pytest
import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router
from sentence_transformers.sparse_encoder.losses import (
    CachedSpladeLoss,
    SparseMultipleNegativesRankingLoss,
)
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling, Transformer
from torch import Tensor, nn
from transformers import AutoTokenizer, BertForMaskedLM

from lexforge.models import fuse_splade_head, unfuse_splade_head

TEXTS = ["sort the list of tokens", "", "한국 서울 검색 은 문서", "query", "tree graph node " * 60]


def masked_language_model(name: str, vocab_size: int) -> nn.Module:
    """A random two-layer model of a supported architecture, without dropout, with many active terms."""
    import transformers as hf

    torch.manual_seed(0)
    common = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 70,
        "initializer_range": 0.3,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    bare = {k: v for k, v in common.items() if not k.endswith("prob")}
    models = {
        "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**common)),
        "distilbert": lambda: hf.DistilBertForMaskedLM(
            hf.DistilBertConfig(
                vocab_size=vocab_size,
                dim=32,
                n_layers=2,
                n_heads=2,
                hidden_dim=48,
                dropout=0.0,
                attention_dropout=0.0,
                initializer_range=0.3,
            )
        ),
        "roberta": lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**common, type_vocab_size=2)),
        "xlm-roberta": lambda: hf.XLMRobertaForMaskedLM(hf.XLMRobertaConfig(**common, type_vocab_size=2)),
        "electra": lambda: hf.ElectraForMaskedLM(hf.ElectraConfig(**common, embedding_size=16)),
        "modernbert": lambda: hf.ModernBertForMaskedLM(
            hf.ModernBertConfig(**bare, **special, global_attn_every_n_layers=2)
        ),
    }
    return models[name]()


def encoder(folder: Path, tokenizer_folder: Path, name: str = "bert", **pooling: object) -> SparseEncoder:
    """A plain model of an architecture on the tiny tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    model = masked_language_model(name, len(tokenizer))
    with torch.no_grad():  # an untrained bias is 0; a trained one is not
        decoder = model.get_output_embeddings()
        if decoder.bias is not None:
            decoder.bias.normal_()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    transformer = Transformer(str(folder), transformer_task="fill-mask", max_seq_length=32)
    return SparseEncoder(modules=[transformer, SpladePooling(**pooling)], device="cpu")


@pytest.fixture
def plain(tmp_path: Path, tiny_checkpoint: Path) -> SparseEncoder:
    """A plain BERT model without dropout."""
    return encoder(tmp_path / "bert", tiny_checkpoint)


def dense(model: SparseEncoder, **arguments: object) -> Tensor:
    return model.encode(TEXTS, convert_to_sparse_tensor=False, **arguments)


def loss_and_gradients(model: SparseEncoder) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of two columns of texts and the gradient of every parameter, in training mode."""
    model.train()
    model.zero_grad()
    first, second = (
        model(model.preprocess(texts))["sentence_embedding"] for texts in (TEXTS[:2], TEXTS[2:4])
    )
    loss = ((first @ second.T) ** 2).mean() + first.sum()
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Equal within float32 rounding; of the largest gradient, since a key bias has only rounding for one."""
    assert ours.keys() == theirs.keys()
    scale = max(float(grad.abs().max()) for grad in theirs.values())
    for name, grad in theirs.items():
        torch.testing.assert_close(
            ours[name], grad, rtol=1e-4, atol=1e-5 * scale, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("name", ["bert", "distilbert", "roberta", "xlm-roberta", "electra", "modernbert"])
def test_fused_equals_plain(name: str, tmp_path: Path, tiny_checkpoint: Path) -> None:
    """Vectors, gradients, names and tied weights do not change, for each architecture, nor after unfusing."""
    model = encoder(tmp_path / name, tiny_checkpoint, name)
    vectors, (loss, grads) = dense(model), loss_and_gradients(model)
    keys = list(model.state_dict())
    assert fuse_splade_head(model) is model

    assert list(model.state_dict()) == keys
    backbone = model[0].model
    assert backbone.get_output_embeddings().weight is backbone.get_input_embeddings().weight
    assert (vectors > 0).any()
    torch.testing.assert_close(dense(model), vectors, rtol=0, atol=1e-5)
    fused_loss, fused_grads = loss_and_gradients(model)
    torch.testing.assert_close(fused_loss, loss, rtol=1e-5, atol=0)
    assert_same_gradients(fused_grads, grads)

    assert unfuse_splade_head(model) is model
    assert torch.equal(dense(model), vectors)


def test_fusing_leaves_modes_and_random_state(tiny_splade: SparseEncoder) -> None:
    """The check of the architecture runs one forward: a run with dropout must not notice."""
    tiny_splade.train()
    tiny_splade[0].model.cls.eval()
    modes = [module.training for module in tiny_splade.modules()]
    random_state = torch.get_rng_state()
    fuse_splade_head(tiny_splade)
    assert [module.training for module in tiny_splade.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random_state)


def test_saved_files_are_stock_and_load_plain(plain: SparseEncoder, tmp_path: Path) -> None:
    """A class of ours in `modules.json` would ask every user for trust_remote_code."""
    vectors = dense(plain)
    plain.save_pretrained(str(tmp_path / "plain"), create_model_card=False)
    fuse_splade_head(plain).save_pretrained(str(tmp_path / "fused"), create_model_card=False)
    names = sorted(path.relative_to(tmp_path / "plain") for path in (tmp_path / "plain").rglob("*.*"))
    assert names == sorted(path.relative_to(tmp_path / "fused") for path in (tmp_path / "fused").rglob("*.*"))
    for name in names:
        assert (tmp_path / "fused" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes(), name
    types = [entry["type"] for entry in json.loads((tmp_path / "fused" / "modules.json").read_text())]
    assert all(name.startswith("sentence_transformers.") for name in types)
    torch.testing.assert_close(dense(SparseEncoder(str(tmp_path / "fused"))), vectors, rtol=0, atol=1e-6)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_has_weights_of_its_own(duplicate, plain: SparseEncoder) -> None:
    """A momentum encoder or a worker process is a copy: its head must read the copy's weights."""
    fuse_splade_head(plain)
    before = dense(plain)
    clone = duplicate(plain)
    # weights read from a file are not aligned as copied ones are, and the product sums in another order
    torch.testing.assert_close(dense(clone), before, rtol=0, atol=1e-6)
    with torch.no_grad():
        clone[0].model.get_output_embeddings().weight.mul_(2)
    assert torch.equal(dense(plain), before)
    assert (dense(clone) - before).abs().max() > 0.1


@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
@pytest.mark.parametrize("chunk_size", [None, 3])
def test_pooling_options(
    activation: str, chunk_size: int | None, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    """The double log1p of the OpenSearch models is honoured; a chunk size changes no result."""
    model = encoder(tmp_path / "m", tiny_checkpoint, activation_function=activation, chunk_size=chunk_size)
    expected = dense(model)
    fuse_splade_head(model)
    torch.testing.assert_close(dense(model), expected, rtol=0, atol=1e-5)
    assert model.get_embedding_dimension() == expected.shape[1]


def test_encode_keeps_its_arguments(plain: SparseEncoder) -> None:
    """`encode` stays the method of sentence-transformers: every option gives what the plain model gives."""
    fused = fuse_splade_head(copy.deepcopy(plain))
    for arguments in (
        {"max_active_dims": 3},
        {"convert_to_sparse_tensor": False, "prompt": "search "},
        {"batch_size": 1, "save_to_cpu": True},
    ):
        ours, theirs = fused.encode(TEXTS, **arguments), plain.encode(TEXTS, **arguments)
        assert (ours.layout, ours.dtype) == (theirs.layout, theirs.dtype)
        torch.testing.assert_close(ours.to_dense(), theirs.to_dense(), rtol=0, atol=1e-5)
    rows = fused.encode(TEXTS, convert_to_tensor=False)
    assert isinstance(rows, list)
    assert rows[0].shape == (len(plain.tokenizer),)
    assert fused.encode(TEXTS[0]).shape == rows[0].shape
    assert fused.encode_query(TEXTS[:2]).shape == fused.encode_document(TEXTS[:2]).shape


def test_a_router_is_fused_inside_its_route(plain: SparseEncoder, tmp_path: Path) -> None:
    """The inference-free model: a static query side, and a document side with the head."""
    static = SparseStaticEmbedding(plain.tokenizer, frozen=False)
    router = Router.for_query_document([static], [plain[0], plain[1]])
    model = SparseEncoder(modules=[router], device="cpu", similarity_fn_name="dot")
    documents, queries = model.encode_document(TEXTS).to_dense(), model.encode_query(TEXTS[:3]).to_dense()
    keys = list(model.state_dict())
    fuse_splade_head(model)
    assert "forward" in vars(plain[1])
    assert list(model.state_dict()) == keys
    torch.testing.assert_close(model.encode_document(TEXTS).to_dense(), documents, rtol=0, atol=1e-5)
    assert torch.equal(model.encode_query(TEXTS[:3]).to_dense(), queries)
    model.save_pretrained(str(tmp_path / "router"), create_model_card=False)
    config = json.loads((tmp_path / "router" / "router_config.json").read_text())
    assert all(name.startswith("sentence_transformers.") for name in config["types"].values())
    unfuse_splade_head(model)
    assert "forward" not in vars(plain[1])


def test_a_transformer_shared_by_two_routes(plain: SparseEncoder) -> None:
    """One backbone for queries and documents is fused once; two poolings behind it are refused."""
    shared = Router.for_query_document([plain[0], plain[1]], [plain[0], plain[1]])
    model = SparseEncoder(modules=[shared], device="cpu")
    expected = model.encode_query(TEXTS).to_dense()
    fuse_splade_head(model)
    torch.testing.assert_close(model.encode_query(TEXTS).to_dense(), expected, rtol=0, atol=1e-5)
    unfuse_splade_head(model)
    parted = Router.for_query_document([plain[0], plain[1]], [plain[0], SpladePooling("max")])
    with pytest.raises(ValueError, match="shared by several routes needs one SpladePooling"):
        fuse_splade_head(SparseEncoder(modules=[parted], device="cpu"))


def test_autocast_gives_float32_near_the_plain_vectors(plain: SparseEncoder) -> None:
    """Training in bf16: products in bf16, activations and the losses behind them in float32."""
    exact = dense(plain)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        theirs = dense(plain).float()
        ours = dense(fuse_splade_head(plain))
    assert ours.dtype == torch.float32
    assert (ours - exact).abs().max() <= 2 * (theirs - exact).abs().max()


@pytest.mark.filterwarnings(
    "ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning"  # sentence-transformers calls it
)
def test_gradient_checkpointing(plain: SparseEncoder) -> None:
    """The backbone may recompute its layers: the gradients stay."""
    fuse_splade_head(plain)
    _, expected = loss_and_gradients(plain)
    plain.gradient_checkpointing_enable({"use_reentrant": False})
    _, grads = loss_and_gradients(plain)
    assert_same_gradients(grads, expected)


@pytest.mark.parametrize("cut", [{"mini_batch_size": 2}, {"mini_batch_num_tokens": 16}])
def test_cached_splade_loss(plain: SparseEncoder, cut: dict[str, int]) -> None:
    """The cached loss runs the model twice, once without a graph: loss and gradients stay. It cuts a batch by
    texts, or by their tokens without padding.
    """
    results = []
    for model in (plain, fuse_splade_head(copy.deepcopy(plain))):
        loss = CachedSpladeLoss(
            model,
            SparseMultipleNegativesRankingLoss(model),
            document_regularizer_weight=0.01,
            query_regularizer_weight=0.01,
            **cut,
        )
        model.train()
        model.zero_grad()
        columns = [model.preprocess(texts) for texts in (TEXTS[:4], TEXTS[1:])]
        parts = loss(columns, None)
        total = sum(parts.values())
        total.backward()
        results.append(
            (total.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None})
        )
    (expected, theirs), (received, ours) = results
    torch.testing.assert_close(received, expected, rtol=1e-5, atol=1e-6)
    assert_same_gradients(ours, theirs)


def test_flattened_inputs(plain: SparseEncoder) -> None:
    """Flash attention hands over all tokens in one row; pooling them must equal pooling the padded batch."""
    fuse_splade_head(plain)
    features = plain[0](plain.preprocess(TEXTS))
    expected = plain[1](dict(features))["sentence_embedding"]
    lengths = features["attention_mask"].sum(1)
    flat = {
        "token_embeddings": features["token_embeddings"][features["attention_mask"].bool()].unsqueeze(0),
        "cu_seq_lens_q": torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int(),
        "max_length_q": int(lengths.max()),
    }
    torch.testing.assert_close(plain[1](flat)["sentence_embedding"], expected, rtol=0, atol=1e-6)


def test_new_tokens(plain: SparseEncoder) -> None:
    """Added tokens widen the fused vectors; another output embedding must not be passed over in silence."""
    fuse_splade_head(plain)
    backbone = plain[0].model
    size = backbone.config.vocab_size + 3
    backbone.resize_token_embeddings(size)
    expected = dense(unfuse_splade_head(copy.deepcopy(plain)))
    assert expected.shape == (len(TEXTS), size)
    torch.testing.assert_close(dense(plain), expected, rtol=0, atol=1e-5)
    backbone.set_output_embeddings(copy.deepcopy(unfuse_splade_head(backbone.get_output_embeddings())))
    with pytest.raises(RuntimeError, match="call fuse_splade_head on the model again"):
        dense(plain)
    fuse_splade_head(fuse_splade_head(plain))
    torch.testing.assert_close(dense(plain), expected, rtol=0, atol=1e-5)


class _ScaledBert(BertForMaskedLM):
    """Logits that are not the output of the output embedding."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * 0.5
        return output


def test_what_cannot_be_fused_is_refused(
    plain: SparseEncoder, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent fallback would cost the speed, a silent mistake the model; a refused model stays plain."""
    with pytest.raises(
        ValueError, match=r"pooling_strategy must be 'max' to fuse, .* received 'sum'.*SpladePooling"
    ):
        fuse_splade_head(SparseEncoder(modules=[plain[0], SpladePooling("sum")], device="cpu"))
    static = SparseEncoder(modules=[SparseStaticEmbedding(plain.tokenizer)], device="cpu")
    with pytest.raises(
        ValueError, match=r"followed by SpladePooling, received the modules \['SparseStaticEmbedding'\]"
    ):
        fuse_splade_head(static)
    states = Transformer(str(tiny_checkpoint))
    with pytest.raises(
        ValueError, match=r"BertModel needs a plain nn.Linear as output embedding; received builtins.NoneType"
    ):
        fuse_splade_head(SparseEncoder(modules=[states, SpladePooling("max")], device="cpu"))
    plain[0].model.__class__ = _ScaledBert
    with pytest.raises(ValueError, match="logits of _ScaledBert are not the output of its output embedding"):
        fuse_splade_head(plain)
    assert not any("forward" in vars(module) for module in plain.modules())


class Activations(nn.Module):
    """A model as tracing and exporting want it: tensors in, a tensor out."""

    def __init__(self, model: SparseEncoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        features = {"input_ids": input_ids, "attention_mask": attention_mask}
        return self.model(features)["sentence_embedding"]


def tokens(model: SparseEncoder, texts: list[str]) -> tuple[Tensor, Tensor]:
    features = model.preprocess(texts)
    return features["input_ids"], features["attention_mask"]


@pytest.mark.slow  # tests/kernels/splade_head/test_compiled.py has the head alone, bit for bit
# torch 2.11 warns of a cached function of sentence-transformers, which it traces as if it were not cached.
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor"
)  # the compiler looks at a break's tensors
def test_a_compiled_model_has_the_same_numbers(tiny_splade: SparseEncoder) -> None:
    """`torch_compile=True` must not fail at the head, which stands between two graphs."""
    del tiny_splade[0].model.bert.encoder.layer[1:]  # the compiler takes as long for each
    module = Activations(fuse_splade_head(tiny_splade).eval())
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="aot_eager")
    for texts in (TEXTS[:2], TEXTS):
        batch = tokens(tiny_splade, texts)
        found, expected = compiled(*batch), module(*batch)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        names, parameters = zip(*module.named_parameters(), strict=True)
        gradients = [
            torch.autograd.grad(out.square().sum(), parameters, allow_unused=True)
            for out in (found, expected)
        ]
        for name, one, other in zip(names, *gradients, strict=True):
            assert (one is None) == (other is None), name
            if one is not None:
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)  # by inductor
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor"
)  # the compiler looks at a break's tensors
def test_inductor_compiles_a_fused_model(tiny_splade: SparseEncoder) -> None:
    """The compiler of `torch_compile=True` makes C++ of all but the head; its sums round otherwise."""
    module = Activations(fuse_splade_head(tiny_splade).eval())
    torch._dynamo.reset()
    compiled = torch.compile(module)
    batch = tokens(tiny_splade, TEXTS)
    found, expected = compiled(*batch), module(*batch)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for out in (found, expected):
        out.sum().backward()
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("way", ["trace", "export", "onnx"])
def test_a_traced_model_has_the_plain_head_and_says_so_once(
    way: str, tiny_splade: SparseEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A traced graph runs where this package is not installed, so it must hold ordinary operators."""
    if way == "onnx":
        pytest.importorskip("onnx", reason="the extra `export` is not installed")
    # The exporter gives a module its mode back, so the outer one must not be in training either.
    module = Activations(fuse_splade_head(tiny_splade)).eval()
    batch = tokens(tiny_splade, TEXTS)
    expected = module(*batch)
    with caplog.at_level(logging.WARNING), warnings.catch_warnings():
        warnings.filterwarnings("ignore")  # of the tracers, about Python in the model
        if way == "trace":
            traced = torch.jit.trace(module, batch, check_trace=False)
            graph = traced.inlined_graph.str(False)  # without the paths of the source files
            found = traced(*batch)
        elif way == "export":
            exported = torch.export.export(module, batch)
            graph = str(exported.graph)
            found = exported.module()(*batch)
        else:
            torch.onnx.export(module, batch, str(tmp_path / "model.onnx"), dynamo=False)
            graph = (tmp_path / "model.onnx").read_bytes().decode("latin-1")
            found = expected
    assert "lexforge" not in graph
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    lines = [record for record in caplog.records if "traced in its plain form" in record.getMessage()]
    assert len(lines) == 1
    # Afterwards the head is fused again. The attention may have taken another way, which rounds otherwise.
    torch.testing.assert_close(module(*batch), expected, rtol=1e-5, atol=1e-5)
    states = tiny_splade[0](dict(zip(("input_ids", "attention_mask"), batch, strict=True)))
    assert states["token_embeddings"].shape[2] == 32
