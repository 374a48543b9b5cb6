"""A resumed run takes the tile sizes of the run that it continues, whatever a timing would say."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sentence_transformers import SparseEncoder
from transformers import TrainerControl, TrainerState, TrainingArguments

from lexforge.training import SpladeTrainer
from lexforge.training.kernel_tiles import KernelTilesCallback

tiles = pytest.importorskip("lexforge.kernels.triton.tiles", reason="the extra `triton` is not installed")
LENGTH, FEATURES, TERMS = 64, 128, 1000
LAUNCHED: list[Any] = []


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The forward kernel with its real tuning, whose launches are noted instead of run."""
    kernel = tiles.tuned_kernels()["forward"]
    LAUNCHED.clear()
    monkeypatch.setattr(kernel, "fn", SimpleNamespace(run=lambda *_, **given: LAUNCHED.append(given)))
    for each in tiles.tuned_kernels().values():
        monkeypatch.setattr(each, "cache", {})
    return kernel


def launch(kernel: Any, fastest: int, monkeypatch: pytest.MonkeyPatch, *, keep_winner: bool = True) -> Any:
    """Call the kernel where a timing finds the named configuration the fastest; returns what it took."""

    def timed(*args: Any, config: Any, **kwargs: Any) -> list[float]:
        return [0.0 if config is kernel.configs[fastest] else 1.0]

    monkeypatch.setattr(kernel, "_bench", timed)
    tensor = torch.zeros(1, dtype=torch.bfloat16)
    sizes = (1, LENGTH, TERMS, FEATURES, 0, 0, 0, 1, LENGTH)
    constants = {"HAS_BIAS": True, "KEEP_WINNER": keep_winner, "PRECISION": "ieee"}
    kernel.run(*[tensor] * 8, *sizes, grid=(1,), warmup=False, **constants)
    return {name: value for name, value in LAUNCHED[-1].items() if name.startswith("BLOCK")}


def process(folder: Path, step: int) -> tuple[TrainingArguments, TrainerState, TrainerControl]:
    arguments = TrainingArguments(str(folder), report_to="none", use_cpu=True)
    arguments.resume_from_checkpoint = str(folder / f"checkpoint-{step}")
    return arguments, TrainerState(global_step=step), TrainerControl()


def test_a_resumed_run_keeps_the_tiles_of_the_first(
    kernel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second process would find another configuration the fastest, and sum in another order."""
    first, second = 4, 5  # bfloat16 tiles of 64 tokens, as long as the row
    chosen = launch(kernel, first, monkeypatch)
    assert chosen == kernel.configs[first].kwargs
    KernelTilesCallback().on_save(*process(tmp_path, 2))
    kernel.cache.clear()
    assert launch(kernel, second, monkeypatch) == kernel.configs[second].kwargs != chosen
    kernel.cache.clear()
    KernelTilesCallback().on_train_begin(*process(tmp_path, 2))
    assert launch(kernel, second, monkeypatch) == chosen


def test_training_and_evaluation_are_tuned_apart(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation before the first step, which keeps no winners, would choose for training otherwise."""
    assert launch(kernel, 4, monkeypatch, keep_winner=False) == kernel.configs[4].kwargs
    assert launch(kernel, 5, monkeypatch, keep_winner=True) == kernel.configs[5].kwargs
    assert launch(kernel, 5, monkeypatch, keep_winner=False) == kernel.configs[4].kwargs


def test_choices_that_do_not_fit_are_left_out_with_a_warning(
    kernel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another GPU has other limits, and another version of the kernels other configurations."""
    launch(kernel, 4, monkeypatch)
    KernelTilesCallback().on_save(*process(tmp_path, 2))
    file = tmp_path / "checkpoint-2" / "kernel_tiles_0.json"
    saved = json.loads(file.read_text())
    for changed, message in (
        ({"device": "another GPU"}, "chosen on another GPU and this device is cpu"),
        ({"kernels": {"forward": [[[1], {"BLOCK_V": 7}]]}}, r"forward has no configuration {'BLOCK_V': 7}"),
    ):
        kernel.cache.clear()
        caplog.clear()
        file.write_text(json.dumps(saved | changed))
        with caplog.at_level(logging.WARNING):
            KernelTilesCallback().on_train_begin(*process(tmp_path, 2))
        assert message in caplog.text
        assert kernel.cache == {}


def test_a_run_without_the_kernels_writes_no_file(
    kernel: Any, tiny_splade: SparseEncoder, tmp_path: Path, make_trainer: Callable[..., SpladeTrainer]
) -> None:
    """A checkpoint of a run on the CPU is the same whether Triton is installed or not; its trainer has the
    callback, and a resumed run asks for nothing that is not there.
    """
    trainer = make_trainer(tiny_splade, tmp_path)
    trainer.train()
    callbacks = trainer.callback_handler.callbacks
    assert sum(isinstance(callback, KernelTilesCallback) for callback in callbacks) == 1
    assert list(tmp_path.rglob("kernel_tiles*")) == []
    KernelTilesCallback().on_train_begin(*process(tmp_path, 2))
    assert kernel.cache == {}
