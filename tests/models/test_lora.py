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
from lexforge.models import build_splade, lower_bias, unfuse_splade_head
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
    with pytest.raises(ValueError, match="has an adapter of peft, which is saved without the bias"):
        lower_bias(model, 1.0)
    model.save_pretrained(str(tmp_path / "adapted"))
    assert (tmp_path / "adapted" / "adapter_config.json").is_file()
    assert not (tmp_path / "adapted" / "model.safetensors").is_file()
    for loaded in (
        SparseEncoder(str(tmp_path / "adapted"), device="cpu"),
        build_splade(tmp_path / "adapted"),
    ):
        np.testing.assert_allclose(rows(loaded.to("cpu")), trained, atol=1e-5)
