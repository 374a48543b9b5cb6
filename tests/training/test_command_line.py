"""The option that is read before the others."""

from __future__ import annotations

import sys

import pytest

from lexforge.training import preset_on_command_line, scratch_on_command_line


@pytest.mark.parametrize(
    ("arguments", "preset"),
    [
        ([], "lexforge-scratch"),
        (["--steps", "3", "--model", "lexical"], "lexforge-scratch"),
        (["--model", "some/encoder"], "lexforge"),
        (["--model", "lexical", "--preset", "lexforge"], "lexforge"),
        (["--steps", "3", "--preset", "v26", "--loss.flops-weight", "0.1"], "v26"),
        (["--preset=plain", "--help"], "plain"),
        (["--preset", "v22", "--pre", "v26"], "v22"),
    ],
)
def test_the_preset_is_found_among_the_other_options(arguments: list[str], preset: str) -> None:
    """Its numbers are the defaults of other options, so it cannot wait for them; it is never abbreviated."""
    assert preset_on_command_line(arguments) == preset


def test_without_arguments_the_command_line_of_the_process_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a recipe calls it."""
    monkeypatch.setattr(sys, "argv", ["recipe.py", "--preset", "v25"])
    assert preset_on_command_line() == "v25"


def test_an_unknown_preset_ends_the_process_and_lists_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A misspelt name must not train the default for an hour."""
    with pytest.raises(SystemExit):
        preset_on_command_line(["--preset", "v27"])
    assert "invalid choice: 'v27'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "scratch"),
    [([], True), (["--model=lexical"], True), (["--steps", "3", "--model", "some/encoder"], False)],
)
def test_the_kind_of_model_is_known_before_the_other_options(arguments: list[str], scratch: bool) -> None:
    """Whether the model is measured before training depends on it."""
    assert scratch_on_command_line(arguments) is scratch
