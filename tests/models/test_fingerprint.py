"""Everything that changes a model's vectors changes its fingerprint, and nothing else does."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from lexforge.models.fingerprint import fingerprint, text_digest


def changed_weight(model) -> None:
    with torch.no_grad():
        next(iter(model.parameters())).view(-1)[0] += 1e-6


@pytest.mark.parametrize(
    "change",
    [
        changed_weight,
        lambda model: setattr(model, "max_seq_length", 8),
        lambda model: setattr(model, "max_active_dims", 5),
        lambda model: model.prompts.update(document="d: "),
        lambda model: setattr(model, "default_prompt_name", "query"),
        lambda model: setattr(model[1], "pooling_strategy", "sum"),
        lambda model: setattr(model[0].auto_model.config, "layer_norm_eps", 0.5),
        lambda model: model.tokenizer.add_tokens(["searching"]),
        lambda model: setattr(model.tokenizer.backend_tokenizer, "normalizer", None),
        lambda model: setattr(model.tokenizer.backend_tokenizer.model, "max_input_chars_per_word", 3),
        lambda model: setattr(model.tokenizer, "truncation_side", "left"),
        lambda model: model.bfloat16(),
    ],
)
def test_a_changed_model_has_another_fingerprint(tiny_splade, change) -> None:
    """Stale vectors would evaluate the model of an earlier step."""
    before = fingerprint(tiny_splade)
    assert fingerprint(tiny_splade) == before
    change(tiny_splade)
    assert fingerprint(tiny_splade) != before


def test_another_pooling_of_a_dense_model_is_another_fingerprint(tiny_dense) -> None:
    """The cache of a teacher would hand out the vectors of another one."""
    before = fingerprint(tiny_dense)
    tiny_dense[1] = type(tiny_dense[1])(tiny_dense[1].embedding_dimension, "max")
    assert fingerprint(tiny_dense) != before


def test_what_a_model_did_before_does_not_change_its_fingerprint(tiny_splade, tiny_checkpoint) -> None:
    """Encoding sets the tokenizer's padding and truncation; a folder's name is no part of a model."""
    from sentence_transformers import SparseEncoder

    before = fingerprint(tiny_splade)
    tiny_splade.encode(["a text", "another, longer text"])
    assert fingerprint(tiny_splade) == before
    tiny_splade.train()
    assert fingerprint(tiny_splade) == before
    again = SparseEncoder(modules=list(tiny_splade.children()), device="cpu")
    again[0].auto_model.config._name_or_path = "elsewhere"
    assert fingerprint(again) == before


def test_another_version_of_the_libraries_changes_no_fingerprint(tiny_splade, monkeypatch) -> None:
    """An upgrade would make every index and every encoded corpus those of another model."""
    config = tiny_splade[0].auto_model.config
    config.inner = type(config)(use_cache=True)  # as models of text and images hold one for each
    before = fingerprint(tiny_splade)
    monkeypatch.setattr("transformers.configuration_utils.__version__", "99.0.0")
    config.use_cache = config.inner.use_cache = False
    config.inner._name_or_path = "elsewhere"
    assert config.to_dict()["transformers_version"] == "99.0.0"
    assert fingerprint(tiny_splade) == before


def test_a_tied_weight_is_hashed_once_and_an_untied_one_counts(tiny_splade) -> None:
    """The same values in two tensors or in one: both change with either."""
    masked = tiny_splade[0].auto_model
    embeddings, decoder = masked.get_input_embeddings(), masked.get_output_embeddings()
    assert embeddings.weight.data_ptr() == decoder.weight.data_ptr()
    tied = fingerprint(tiny_splade)
    decoder.weight = torch.nn.Parameter(decoder.weight.detach().clone())
    untied = fingerprint(tiny_splade)
    assert untied != tied
    with torch.no_grad():
        decoder.weight[-1, -1] += 1e-6
    assert fingerprint(tiny_splade) != untied


@pytest.mark.filterwarnings("ignore:Already found a `peft_config`")
def test_the_adapter_that_is_used_counts(tiny_splade) -> None:
    """With and without an adapter is the usual comparison, and no weight changes between them."""
    peft = pytest.importorskip("peft", reason="LoRA needs the package peft (extra dev)")
    before = fingerprint(tiny_splade)
    for name in ("one", "two"):
        config = peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False)
        tiny_splade.add_adapter(config, name)
    found = [before]
    for name in ("one", "two"):
        tiny_splade.set_adapter(name)
        found.append(fingerprint(tiny_splade))
    tiny_splade.disable_adapters()
    assert len({*found, fingerprint(tiny_splade)}) == 4


def test_texts_are_told_apart_from_their_joins() -> None:
    """Where one text ends is part of what they are."""
    digests = {text_digest(texts) for texts in (["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], ["\ud800"])}
    assert len(digests) == 5


def test_weights_that_no_vector_depends_on_do_not_count(tiny_dense, tmp_path) -> None:
    """A checkpoint without those of its pooler gets random ones at each load, and its index found nothing."""
    tiny_dense.save_pretrained(str(tmp_path))
    file = next(tmp_path.rglob("model.safetensors"))
    weights = {name: tensor for name, tensor in load_file(file).items() if "pooler." not in name}
    save_file(weights, file, {"format": "pt"})
    one, other = (SentenceTransformer(str(tmp_path), device="cpu") for _ in range(2))
    poolers = [model[0].model.pooler.dense.weight for model in (one, other)]
    assert not torch.equal(*poolers)
    assert fingerprint(one) == fingerprint(other)
    with torch.no_grad():
        other[0].model.get_input_embeddings().weight[0] += 1
    assert fingerprint(one) != fingerprint(other)
