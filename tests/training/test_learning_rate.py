"""The learning rate follows the kind of model, and is named when it was chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lexforge.training import TrainingSettings, with_learning_rate


@pytest.mark.parametrize(
    ("model", "given", "expected"),
    [
        ("lexical", None, 1e-3),
        ("some/encoder", None, 5e-5),
        ("lexical", 7e-6, 7e-6),
        ("some/encoder", 1.0, 1.0),
    ],
)
def test_the_rate_suits_the_kind_of_model(model: str, given: float | None, expected: float) -> None:
    """The rate of a from-scratch model ruins a pretrained one; a rate that was given is never replaced."""
    said: list[str] = []
    settings = TrainingSettings(learning_rate=given, steps=7)
    chosen = with_learning_rate(settings, model, pretrained=5e-5, scratch=1e-3, say=said.append)
    assert chosen == replace(settings, learning_rate=expected)
    assert bool(said) == (given is None)
    if said:
        assert said[0].startswith(f"learning rate {expected:g}, the default for a")
