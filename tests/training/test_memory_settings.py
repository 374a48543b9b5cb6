"""Training in less memory: layers that are computed again, rows that fit, an optimizer with small states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lexforge.losses import memory
from lexforge.settings import TrainingSettings
from lexforge.training.recipe import check_training


def trained(make_trainer: Any, fresh: Any, folder: Path, size: Any = None, **settings: Any) -> dict[str, Any]:
    """The weights and losses of six steps of V26 with every term, and the trainer."""
    chosen = TrainingSettings(**settings)
    trainer = make_trainer(
        fresh(),
        folder,
        dropout=0.0,
        gradient_checkpointing=chosen.gradient_checkpointing,
        arguments={"optim": chosen.arguments(folder).optim},
    )
    trainer.loss.mini_batch_size = size
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return {"weights": trainer.model.state_dict(), "losses": losses, "trainer": trainer}


@pytest.fixture(scope="module")
def expected(make_trainer: Any, fresh: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What training whole batches gives, with the memory that it takes."""
    folder = tmp_path_factory.mktemp("whole")
    return trained(make_trainer, fresh, folder, precision="fp32")


@pytest.mark.parametrize("way", ["checkpointing", "mini-batches", "both"])
def test_less_memory_trains_to_the_same_weights(
    way: str,
    expected: dict[str, Any],
    make_trainer: Any,
    fresh: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is computed twice is the same twice; only the order of sums differs."""
    monkeypatch.setattr(memory, "free_memory", lambda device: 0)
    found = trained(
        make_trainer,
        fresh,
        tmp_path / "less",
        size=None if way == "checkpointing" else "auto",
        gradient_checkpointing=way != "mini-batches",
        precision="fp32",
    )
    layers = found["trainer"].model[0].model.bert.encoder.layer
    assert {layer.gradient_checkpointing for layer in layers} == {way != "mini-batches"}
    torch.testing.assert_close(found["losses"], expected["losses"], rtol=1e-4, atol=1e-4)
    for name, weight in expected["weights"].items():
        # Where a gradient is rounding alone, the steps of AdamW are its signs: six steps of at most 1e-3.
        assert (found["weights"][name] - weight).norm() < 2e-2 * weight.norm() + 2e-2, name


def test_the_optimizer_is_the_one_that_was_named(make_trainer: Any, fresh: Any, tmp_path: Path) -> None:
    """Adafactor keeps sums of rows and columns instead of two states of each weight."""
    sizes = {}
    for name in ("adamw_torch_fused", "adafactor"):
        found = trained(make_trainer, fresh, tmp_path / name, optim=name, precision="fp32")
        states = found["trainer"].optimizer.state.values()
        sizes[name] = sum(value.nbytes for one in states for value in one.values() if torch.is_tensor(value))
    assert sizes["adafactor"] < 0.2 * sizes["adamw_torch_fused"]


def test_an_unknown_optimizer_is_refused() -> None:
    """Before any data is read: with the names that transformers knows, or the package that is missing."""
    check_training(TrainingSettings(optim="adafactor"))
    with pytest.raises(ImportError, match="lomo_optim"):  # a package that nothing here brings
        check_training(TrainingSettings(optim="lomo"))
    with pytest.raises(ValueError, match=r"adam is not a valid OptimizerNames, .*'adafactor'"):
        check_training(TrainingSettings(optim="adam"))


def test_fp16_on_a_processor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate leaves it out there, so that a run which asked for it trained in float32."""
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    for precision in ("auto", "fp32", "bf16"):
        check_training(TrainingSettings(precision=precision))
    with pytest.raises(ValueError, match="--precision fp16 would be ignored without a GPU"):
        check_training(TrainingSettings(precision="fp16"))
