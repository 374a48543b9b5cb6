"""LoRA by peft on the fused head: the adapter is trained and saved, and sentence-transformers loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SparseEncoder
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from lexforge.losses import NeuralSparseLoss
from lexforge.models import build_splade, fuse_splade_head, lower_bias, unfuse_splade_head
from lexforge.training import SpladeTrainer, TrainingSettings

peft = pytest.importorskip("peft", reason="LoRA needs the package peft (extra dev)")

TEXTS = ["sort a list of words", "한국 서울 검색", "the index", "open a file and read it"]
WORDS = "sort list array search index query document vector sparse dense token model".split()
TARGETS = {"decoder LM": ["q_proj", "v_proj"], "masked LM": ["query", "value"]}


@pytest.fixture
def base(request: pytest.FixtureRequest, tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A saved encoder, the base of the adapter: of a decoder LM, or of a masked language model."""
    source, folder, texts = tiny_checkpoint, tmp_path / "base", None
    if request.param == "decoder LM":
        tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
        torch.manual_seed(0)
        settings: dict[str, Any] = {
            "vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "intermediate_size": 32, "max_position_embeddings": 64,
            "initializer_range": 0.2,
        }  # fmt: skip
        source, texts = tmp_path / "lm", TEXTS
        LlamaForCausalLM(LlamaConfig(**settings)).save_pretrained(source)
        tokenizer.save_pretrained(source)
    build_splade(source, texts=texts, device="cpu").save_pretrained(str(folder))
    return folder


def rows(model: SparseEncoder) -> np.ndarray:
    return model.encode(TEXTS, convert_to_sparse_tensor=False, show_progress_bar=False).cpu().numpy()


def with_adapter(base: Path, architecture: str) -> SparseEncoder:
    """The encoder with an adapter that changes its vectors."""
    model = build_splade(base, device="cpu")
    torch.manual_seed(0)
    model.add_adapter(peft.LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS[architecture]))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.1)
    return model.eval()


@pytest.mark.parametrize(
    ("base", "architecture"), [(architecture, architecture) for architecture in TARGETS], indirect=["base"]
)
def test_an_adapter_trains_under_the_fused_head_and_loads_again(
    base: Path, architecture: str, tmp_path: Path
) -> None:
    """The weights of the base stay, those of the adapter change; what was saved holds the adapter and not the
    base, and gives the trained vectors in plain sentence-transformers and here. The plain head is the oracle.
    """
    model = build_splade(base, device="cpu")
    before = rows(model)
    torch.manual_seed(0)  # of the adapter, whatever tests ran before
    model.add_adapter(peft.LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS[architecture]))
    np.testing.assert_allclose(rows(model), before, atol=1e-5)  # an adapter starts as nothing
    frozen = {name: value.clone() for name, value in model.named_parameters() if not value.requires_grad}
    adapter = {name: value.clone() for name, value in model.named_parameters() if "lora_B" in name}
    assert adapter
    assert any("embed" in name for name in frozen)

    data = [{"anchor": word, "positive": f"the {word} of a {other}"} for word in WORDS for other in WORDS[:2]]
    arguments = TrainingSettings(
        steps=10, batch_size=8, gradient_accumulation_steps=1, learning_rate=1e-2, precision="fp32",
        logging_steps=2,
    ).arguments(tmp_path / "run", save_strategy="no", disable_tqdm=True)  # fmt: skip
    loss = NeuralSparseLoss(model, distillation_weight=0.0, similarity="dot", temperature=1.0)
    trainer = SpladeTrainer(model, loss, args=arguments, train_dataset=Dataset.from_list(data))
    trainer.train()
    losses = [line["loss/infonce"] for line in trainer.state.log_history if "loss/infonce" in line]
    assert losses[-1] < losses[0]
    now = dict(model.named_parameters())
    assert all(torch.equal(now[name], value) for name, value in frozen.items())
    assert all(not torch.equal(now[name], value) for name, value in adapter.items())

    trained = rows(model.eval())
    assert np.abs(trained - before).max() > 1e-3
    np.testing.assert_allclose(rows(unfuse_splade_head(model)), trained, atol=1e-5)  # another order of sums
    model.save_pretrained(str(tmp_path / "adapted"))
    assert (tmp_path / "adapted" / "adapter_config.json").is_file()
    assert not (tmp_path / "adapted" / "model.safetensors").is_file()
    for loaded in (
        SparseEncoder(str(tmp_path / "adapted"), device="cpu"),
        build_splade(tmp_path / "adapted"),
    ):
        np.testing.assert_allclose(rows(loaded.to("cpu")), trained, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")  # peft reads it
@pytest.mark.parametrize("base", ["masked LM"], indirect=True)
def test_a_bias_that_an_adapter_is_saved_without_changes_after_the_merge_that_the_message_advises(
    base: Path, tmp_path: Path
) -> None:
    """The thresholds of a trimmed model were lost as it was saved."""
    model = with_adapter(base, "masked LM")
    adapted = rows(model)
    with pytest.raises(
        ValueError, match="has an adapter of peft, which is saved without the bias"
    ) as refused:
        lower_bias(model, 0.1)
    assert "peft.PeftModel.from_pretrained(base.transformers_model, ADAPTER)" in str(refused.value)
    model.save_pretrained(str(tmp_path / "adapter"))
    merged = build_splade(base, device="cpu")
    peft.PeftModel.from_pretrained(merged.transformers_model, tmp_path / "adapter").merge_and_unload()
    np.testing.assert_allclose(rows(merged), adapted, atol=1e-5)
    lower_bias(merged, 0.1).save_pretrained(str(tmp_path / "merged"))
    expected = np.maximum(np.expm1(adapted) - 0.1, 0.0)
    assert ((expected == 0) & (adapted > 0)).any()
    loaded = SparseEncoder(str(tmp_path / "merged"), device="cpu")
    np.testing.assert_allclose(np.expm1(rows(loaded)), expected, atol=1e-4)


@pytest.mark.parametrize("base", ["decoder LM"], indirect=True)
def test_the_decoder_of_a_decoder_lm_is_saved_beside_the_adapter(base: Path, tmp_path: Path) -> None:
    """It is a module of its own, so its bias may change."""
    model = with_adapter(base, "decoder LM")
    adapted = rows(model)
    lower_bias(model, 0.1).save_pretrained(str(tmp_path / "adapter"))
    loaded = SparseEncoder(str(tmp_path / "adapter"), device="cpu")
    np.testing.assert_allclose(np.expm1(rows(loaded)), np.maximum(np.expm1(adapted) - 0.1, 0.0), atol=1e-4)


def test_an_adapter_on_the_decoder_is_named(tiny_checkpoint: Path) -> None:
    """Its layer is called Linear, too: "needs a plain nn.Linear; received Linear" told nothing."""
    model = build_splade(tiny_checkpoint, fused=False, device="cpu")
    model.add_adapter(peft.LoraConfig(r=4, target_modules=["decoder"]))
    with pytest.raises(ValueError, match=r"received peft\.tuners\.lora\.layer\.Linear\. Merge adapters"):
        fuse_splade_head(model)
