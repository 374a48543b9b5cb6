"""What a run takes without flags follows the kind of model and is printed with its reason; flags win."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lexforge.training import (
    KindDefaults,
    TrainingSettings,
    defaults,
    with_defaults,
    with_training_length,
)

OPEN = TrainingSettings(learning_rate=None, warmup_fraction=None)
KINDS = {
    "pretrained": KindDefaults(5e-5, 200, "it knows much"),
    "scratch": KindDefaults(1e-3, 400, "it knows nothing", warmup_fraction=0.2, tokens=160),
}


@dataclass(frozen=True)
class Run:
    """What a recipe's settings have in common."""

    train: TrainingSettings
    max_seq_length: int | None
    model: str
    training_seq_length: int | None = None


def chosen(
    settings: TrainingSettings, length: int | None, model: str | Path
) -> tuple[TrainingSettings, int | None, list[str]]:
    said: list[str] = []
    found = with_defaults(Run(settings, length, str(model)), **KINDS, say=said.append)
    assert found.model == str(model)
    return found.train, found.max_seq_length, said


def test_each_kind_of_model_gets_its_own(tiny_checkpoint: Path) -> None:
    """The rate and the steps of a from-scratch model ruin a pretrained one; every choice is printed once."""
    found, tokens, said = chosen(OPEN, None, "lexical")
    assert found == replace(OPEN, learning_rate=1e-3, steps=400, warmup_fraction=0.2)
    assert tokens == 160
    assert [line.split(":")[0] for line in said] == [
        "learning rate 0.001", "400 steps", "warm-up over 20% of the steps", "160 tokens per text",
    ]  # fmt: skip
    found, tokens, said = chosen(OPEN, None, tiny_checkpoint)
    assert found == replace(OPEN, learning_rate=5e-5, steps=200, warmup_fraction=0.1)
    assert len(said) == 4
    assert "200 steps: it knows much (--steps or --epochs changes it)" in said


@pytest.mark.parametrize(("width", "rate"), [(64, 3e-4), (128, 3e-4), (384, 1e-4), (768, 5e-5), (None, 3e-4)])
def test_a_wide_encoder_takes_a_lower_rate(
    width: int | None, rate: float, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What trains 4 million parameters well lets 110 million diverge."""
    monkeypatch.setattr("lexforge.models.own_settings.own_width", lambda name: width)
    kinds = KINDS | {"pretrained": KindDefaults(3e-4, 200, "it knows much", width=128)}
    said: list[str] = []
    found = with_defaults(Run(OPEN, 16, str(tiny_checkpoint)), **kinds, say=said.append)
    assert found.train.learning_rate == pytest.approx(rate)
    assert (f"of width {width} takes less in proportion" in said[0]) == (rate < 3e-4)
    unscaled = with_defaults(Run(OPEN, 16, str(tiny_checkpoint)), **KINDS, say=said.append)
    assert unscaled.train.learning_rate == 5e-5


@pytest.mark.parametrize("model", ["lexical", "checkpoint"])
def test_what_was_given_stays(model: str, tiny_checkpoint: Path) -> None:
    """A flag always wins, also where it equals no default, and then nothing is printed."""
    given = TrainingSettings(learning_rate=7e-6, steps=3, warmup_fraction=0.0)
    name = tiny_checkpoint if model == "checkpoint" else model
    assert chosen(given, 17, name) == (given, 17, [])


def test_epochs_take_the_place_of_steps() -> None:
    """A run that is given in epochs must not get a number of steps beside them."""
    found, _, said = chosen(replace(OPEN, epochs=2.0), 16, "lexical")
    assert (found.steps, found.epochs) == (None, 2.0)
    assert not any("400 steps" in line for line in said)


@pytest.mark.parametrize(("own", "expected"), [(100, 100), (256, 256), (8192, 256), (None, 128)])
def test_a_pretrained_model_keeps_its_length_within_the_limit(
    own: int | None, expected: int, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """128 tokens cut what a model of 256 was trained to read, and 8,192 of them would fill the memory."""
    monkeypatch.setattr("lexforge.models.own_settings.own_length", lambda name: own)
    _, tokens, said = chosen(OPEN, None, tiny_checkpoint)
    assert tokens == expected <= defaults.LONGEST_TOKENS
    assert said[-1].startswith(f"{expected} tokens per text: ")
    assert ("8192" in said[-1]) == (own == 8192)


@pytest.mark.parametrize(
    ("model", "length", "given", "expected"),
    [
        ("lexical", 384, None, 96),
        ("lexical", 512, None, 128),
        ("lexical", 128, None, 96),
        ("lexical", 96, None, None),
        ("lexical", 192, 40, 40),
        ("checkpoint", 512, None, None),
    ],
)
def test_a_model_from_scratch_learns_from_the_beginnings_of_texts(
    model: str, length: int, given: int | None, expected: int | None
) -> None:
    """Fewer tokens make cheaper steps; a pretrained model keeps its length, and so does a user."""
    said: list[str] = []
    found = with_training_length(Run(OPEN, length, model, given), say=said.append)
    assert found.training_seq_length == expected
    assert len(said) == (expected is not None and given is None)
