"""The encoder is trained in the faster of two formats; what was chosen is kept, and the rest is float32."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SparseEncoder
from transformers import AutoModelForMaskedLM, AutoTokenizer

from lexforge import models
from lexforge.models.training_forward import encoder_name, seconds_of_formats, training_forwards
from lexforge.storage import timings
from lexforge.training import precision

ONE_STEP = {"max_steps": 1, "save_strategy": "no"}


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[int]]:
    """A new machine that takes these seconds for each format; the list grows with each measurement."""
    numbers = count()

    def give(float32: float, bfloat16: float | None) -> list[int]:
        calls: list[int] = []
        seconds = {} if bfloat16 is None else {"float32": float32, "bfloat16": bfloat16}
        name = f"processor {next(numbers)} of {tmp_path}"  # of which nothing is known
        monkeypatch.setattr(timings, "processor_name", lambda: name)
        monkeypatch.setattr(precision, "seconds_of_formats", lambda _: calls.append(1) or seconds)
        return calls

    return give


def formats_in_training(model: SparseEncoder) -> set[torch.dtype]:
    """A set that fills with the formats of the encoder's products while the model is trained."""
    found: set[torch.dtype] = set()

    def note(module: torch.nn.Module, args: Any, output: torch.Tensor) -> None:
        if module.training:
            found.add(output.dtype)

    model[0].model.bert.encoder.layer[0].intermediate.dense.register_forward_hook(note)
    return found


@pytest.mark.parametrize(
    ("float32", "bfloat16", "chosen"),
    [
        (1.0, 0.5, torch.bfloat16),
        (1.0, 0.95, torch.float32),
        (1.0, None, torch.float32),
    ],
)
def test_the_faster_format_is_taken(
    float32: float,
    bfloat16: float | None,
    chosen: torch.dtype,
    timed: Any,
    make_trainer: Any,
    fresh: Any,
    tmp_path: Path,
) -> None:
    """A gain of less than a tenth is not worth the rounding; no instructions, no choice."""
    calls = timed(float32, bfloat16)
    model = fresh()
    formats = formats_in_training(model)
    trainer = make_trainer(model, tmp_path, fastest_precision=True, arguments=ONE_STEP)
    trainer.train()
    assert calls == [1]
    assert formats == {chosen}


@pytest.mark.parametrize("fails", [False, True])
def test_the_format_ends_with_its_training(
    fails: bool,
    timed: Any,
    make_trainer: Any,
    fresh: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model may be trained again, by a trainer of lexforge or another, and then in float32. So may a copy
    that was made in the middle of training, once a trainer of lexforge has it.
    """
    timed(1.0, 0.5)
    model = fresh()
    copies: list[SparseEncoder] = []
    trainer = make_trainer(model, tmp_path / "first", fastest_precision=True, arguments=ONE_STEP)
    step = trainer.training_step

    def copy_and_fail(*args: Any, **kwargs: Any) -> torch.Tensor:
        copies.append(copy.deepcopy(model))
        if fails:
            raise RuntimeError("stopped")
        return step(*args, **kwargs)

    monkeypatch.setattr(trainer, "training_step", copy_and_fail)
    with pytest.raises(RuntimeError, match="stopped") if fails else nullcontext():
        trainer.train()
    assert {forward.dtype for forward in training_forwards(model)} == {torch.float32}
    formats = formats_in_training(copies[0])
    make_trainer(copies[0], tmp_path / "second", arguments=ONE_STEP).train()
    assert formats == {torch.float32}


def test_an_encoder_that_has_no_choice_is_not_timed(fresh: Any) -> None:
    """Frozen weights have no backward pass, and weights of 16 bits no float32; the names tell them apart."""
    names = set()
    for change in ("none", "frozen", "half"):
        transformer = fresh()[0]
        if change == "frozen":
            transformer.requires_grad_(False)
        elif change == "half":
            transformer.bfloat16()
        assert change == "none" or seconds_of_formats(transformer) == {}
        names.add(encoder_name(transformer))
    assert len(names) == 3


def test_a_run_that_is_repeated_computes_the_same(
    timed: Any, make_trainer: Any, fresh: Any, tmp_path: Path
) -> None:
    """A machine that is asked twice may answer differently; another encoder is another question."""
    calls = timed(1.0, 0.89)
    for folder in ("first", "second"):
        make_trainer(fresh(), tmp_path / folder, fastest_precision=True, arguments=ONE_STEP).train()
    assert calls == [1]
    other = {"fastest_precision": True, "dropout": 0.0, "arguments": ONE_STEP}
    make_trainer(fresh(), tmp_path / "third", **other).train()
    assert calls == [1, 1]


def test_everything_but_the_encoder_is_float32(
    timed: Any, make_trainer: Any, fresh: Any, tmp_path: Path
) -> None:
    """bfloat16 shows inside the encoder, and neither in what the head gets nor in weights and gradients."""
    timed(1.0, 0.1)
    model = fresh()
    trainer = make_trainer(model, tmp_path, fastest_precision=True)
    inside: list[torch.dtype] = []
    outside: list[torch.dtype] = []
    evaluated: list[torch.dtype] = []

    def note(module: torch.nn.Module, args: Any, output: torch.Tensor) -> None:
        (inside if module.training else evaluated).append(output.dtype)

    model[0].model.bert.encoder.layer[0].intermediate.dense.register_forward_hook(note)
    model[0].register_forward_hook(lambda _, args, output: outside.append(output["token_embeddings"].dtype))
    trainer.train()
    model.encode("a text")
    assert set(inside) == {torch.bfloat16}
    assert set(evaluated) == {torch.float32}
    assert set(outside) == {torch.float32}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    state = trainer.optimizer.state.values()
    assert {value.dtype for one in state for value in one.values() if value.dim()} == {torch.float32}


def test_a_resumed_run_keeps_the_choice(timed: Any, make_trainer: Any, fresh: Any, tmp_path: Path) -> None:
    """On another machine, or a busier one, it would otherwise round differently from its beginning."""
    timed(1.0, 0.5)
    make_trainer(fresh(), tmp_path, fastest_precision=True, arguments={"max_steps": 6}).train()
    calls = timed(1.0, 2.0)
    model = fresh()
    formats = formats_in_training(model)
    trainer = make_trainer(model, tmp_path, fastest_precision=True)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert calls == []
    assert formats == {torch.bfloat16}


def assert_encodes_in_float32(model: SparseEncoder, untrained: SparseEncoder) -> None:
    untrained.load_state_dict(model.state_dict())
    models.fuse_splade_head(untrained)  # as a trainer does; the plain head adds up in another order
    assert torch.equal(*(one.encode(["a tree"]).to_dense() for one in (model, untrained)))


def test_autocast_ends_with_its_training(make_trainer: Any, fresh: Any, tmp_path: Path) -> None:
    """Each training of a model has its own format, by another trainer or the same; the model that is left
    computes in float32, as its saved copy does.
    """
    model = fresh()
    trainers = {
        bf16: make_trainer(model, tmp_path / str(bf16), arguments=ONE_STEP | {"bf16": bf16})
        for bf16 in (False, True)
    }
    formats = formats_in_training(model)
    for bf16 in (False, True, True, False):
        formats.clear()
        trainers[bf16].train()
        assert formats == {torch.bfloat16 if bf16 else torch.float32}
        assert_encodes_in_float32(model, fresh())


def test_a_training_that_fails_takes_its_autocast_along(
    make_trainer: Any, fresh: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of an interrupted notebook cell is used like any other."""
    model = fresh()
    trainer = make_trainer(model, tmp_path, arguments=ONE_STEP | {"bf16": True})
    monkeypatch.setattr(trainer, "log", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    assert_encodes_in_float32(model, fresh())


@pytest.mark.parametrize("saved", [torch.float16, torch.bfloat16])
def test_half_weights_are_widened(saved: torch.dtype, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """transformers loads weights as they were saved, and a run in float16 ends in NaN after a few steps."""
    half = AutoModelForMaskedLM.from_pretrained(tiny_checkpoint, dtype=saved)
    half.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_checkpoint).save_pretrained(tmp_path)
    model = models.build_splade(tmp_path)
    assert {parameter.dtype for parameter in model.parameters()} == {saved}
    (line,) = precision.widen_weights(model)
    assert f"saved in {str(saved).removeprefix('torch.')} and are trained" in line
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert precision.widen_weights(model) == []
    weight = model[0].model.get_output_embeddings().weight
    assert torch.equal(weight, half.get_output_embeddings().weight.float())
    assert model.encode(["a tree"]).dtype == torch.float32


def test_trained_float16_weights_are_refused(tiny_splade: Any, make_trainer: Any, tmp_path: Path) -> None:
    """Frozen ones may stay so, as those under an adapter."""
    tiny_splade.half()
    with pytest.raises(
        ValueError, match=r"^\d+ weights of the model are float16 \(0\.model\..*model\.float\(\)"
    ):
        make_trainer(tiny_splade, tmp_path)
    for parameter in tiny_splade.parameters():
        parameter.requires_grad = False
    make_trainer(tiny_splade, tmp_path)
