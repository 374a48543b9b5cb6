"""What `--model` names."""

from __future__ import annotations

from pathlib import Path

from lexforge.models import build_lexical_backbone, resolve_backbone

TEXTS = ["sort a list of numbers", "open a file and read it", "walk a tree of nodes"]
WEIGHTS = "model.safetensors"


def test_a_named_checkpoint_is_returned_and_nothing_is_built(tmp_path: Path) -> None:
    """A hub name must reach the loader as it was typed."""
    name = resolve_backbone("org/name", TEXTS, tmp_path / "backbone", max_seq_length=16, seed=0)
    assert name == "org/name"
    assert not (tmp_path / "backbone").exists()


def test_lexical_builds_the_backbone_of_the_texts_and_the_seed(tmp_path: Path) -> None:
    """The same bytes as a direct call, so that the seed and the length of a recipe reach the backbone."""
    folder = resolve_backbone("lexical", TEXTS, tmp_path / "backbone", max_seq_length=16, seed=3)
    assert folder == tmp_path / "backbone"
    expected = build_lexical_backbone(TEXTS, tmp_path / "expected", max_seq_length=16, seed=3)
    for name in (WEIGHTS, "config.json", "tokenizer.json"):
        assert (tmp_path / "backbone" / name).read_bytes() == (expected / name).read_bytes(), name


def test_a_backbone_that_is_there_is_used_again(tmp_path: Path) -> None:
    """A resumed run, and the other processes of a run, take the backbone that the first call built."""
    resolve_backbone("lexical", TEXTS, tmp_path / "backbone", max_seq_length=16, seed=3)
    before = (tmp_path / "backbone" / WEIGHTS).read_bytes()
    resolve_backbone("lexical", TEXTS, tmp_path / "backbone", max_seq_length=16, seed=4)
    assert (tmp_path / "backbone" / WEIGHTS).read_bytes() == before
