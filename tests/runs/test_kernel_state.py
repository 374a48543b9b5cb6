"""A resumed run takes the choices of the run that it continues, whatever a timing would say."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import make_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sentence_transformers import SparseEncoder
from torch import nn
from transformers import TrainerControl, TrainerState, TrainingArguments

from lexforge.kernels.splade_head.choice import VARIABLE
from lexforge.kernels.splade_head.triton import tiles
from lexforge.runs import RunStateCallback
from lexforge.runs.run_directory import claim_run_directory, complete_environment
from lexforge.storage import timings
from lexforge.training import SpladeTrainer

LENGTH, FEATURES, TERMS = 64, 128, 1000
LAUNCHED: list[Any] = []
SECONDS = {"float32": 0.008, "bfloat16": 0.003}


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing was measured, and the folder of the cache cannot be made."""
    before = dict(timings.timings())
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv(VARIABLE, raising=False)
    forget()
    yield
    forget()
    timings.timings().update(before)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The forward kernel with its real tuning, whose launches are noted instead of run."""
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    importlib.import_module("lexforge.kernels.splade_head.triton.kernels")
    kernel = tiles.tuned_kernels()["forward"]
    LAUNCHED.clear()
    monkeypatch.setattr(kernel, "fn", SimpleNamespace(run=lambda *_, **given: LAUNCHED.append(given)))
    for each in tiles.tuned_kernels().values():
        monkeypatch.setattr(each, "cache", {})
    return kernel


def forget() -> None:
    """As if this were a new process, which has no cached file to read."""
    timings.timings().clear()


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


def process(folder: Path) -> tuple[TrainingArguments, TrainerState, TrainerControl]:
    arguments = TrainingArguments(str(folder), report_to="none", use_cpu=True)
    arguments.resume_from_checkpoint = str(folder / "checkpoint-2")
    return arguments, TrainerState(global_step=2, is_world_process_zero=True), TrainerControl()


def test_a_resumed_run_keeps_the_backend_of_the_first(tmp_path: Path) -> None:
    """Without a cache a new process could find another backend the fastest, and round in another order."""
    RunStateCallback(nn.Identity()).on_train_begin(*process(tmp_path))  # nothing was measured yet
    timings.timings()["16"] = SECONDS
    RunStateCallback(nn.Identity()).on_save(*process(tmp_path))
    forget()
    RunStateCallback(nn.Identity()).on_train_begin(*process(tmp_path))
    assert timings.timings() == {"16": SECONDS}


def test_the_environment_is_completed_at_the_end(tmp_path: Path) -> None:
    """`env.json` is written before the first batch, when a new machine has measured nothing."""
    run = tmp_path / "run"
    claim_run_directory(run, make_dataclass("Settings", ["resume"])(False), data={})
    before = json.loads((run / "env.json").read_text())
    assert before["splade_head"] == {"requested_backend": "measured", "timings": {}}
    timings.timings()["16"] = SECONDS
    complete_environment(run)
    assert json.loads((run / "env.json").read_text()) == before | {
        "splade_head": {"requested_backend": "measured", "timings": {"16": SECONDS}}
    }


def test_a_resumed_run_keeps_the_tiles_of_the_first(
    kernel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second process would find another configuration the fastest, and sum in another order."""
    first, second = 4, 5  # bfloat16 tiles of 64 tokens, as long as the row
    chosen = launch(kernel, first, monkeypatch)
    assert chosen == kernel.configs[first].kwargs
    RunStateCallback(nn.Identity()).on_save(*process(tmp_path))
    kernel.cache.clear()
    assert launch(kernel, second, monkeypatch) == kernel.configs[second].kwargs != chosen
    kernel.cache.clear()
    RunStateCallback(nn.Identity()).on_train_begin(*process(tmp_path))
    assert launch(kernel, second, monkeypatch) == chosen


def test_training_and_evaluation_are_tuned_apart(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation before the first step, which keeps no winners, would choose for training otherwise."""
    assert launch(kernel, 4, monkeypatch, keep_winner=False) == kernel.configs[4].kwargs
    assert launch(kernel, 5, monkeypatch, keep_winner=True) == kernel.configs[5].kwargs
    assert launch(kernel, 5, monkeypatch, keep_winner=False) == kernel.configs[4].kwargs


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"device": "another GPU"}, "chosen on another GPU and this device is cpu"),
        ({"kernels": {"forward": [[[1], {"BLOCK_V": 7}]]}}, r"forward has no configuration {'BLOCK_V': 7}"),
    ],
)
def test_tiles_that_do_not_fit_are_left_out_with_a_warning(
    changed: dict[str, Any],
    message: str,
    kernel: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another GPU has other limits, and another version of the kernels other configurations."""
    launch(kernel, 4, monkeypatch)
    saved = tiles.state()
    kernel.cache.clear()
    with caplog.at_level(logging.WARNING):
        tiles.load_state(saved | changed)
    assert message in caplog.text
    assert kernel.cache == {}


def test_a_run_that_times_nothing_writes_no_file(
    tiny_splade: SparseEncoder, tmp_path: Path, make_trainer: Callable[..., SpladeTrainer]
) -> None:
    """A checkpoint of small batches is the same whether Triton is installed or not; its trainer has the
    callback, and a resumed run asks for nothing that is not there.
    """
    trainer = make_trainer(tiny_splade, tmp_path)
    trainer.train()
    callbacks = trainer.callback_handler.callbacks
    assert sum(isinstance(callback, RunStateCallback) for callback in callbacks) == 1
    assert list(tmp_path.rglob("checkpoint-*"))
    assert list(tmp_path.rglob("run_state*")) == []
