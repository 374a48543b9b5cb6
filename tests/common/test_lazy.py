"""Subpackages that load a name when it is first used."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import lexforge

SUBPACKAGES = ["corpus", "data", "evaluation", "losses", "models", "retrieval", "runs", "training"]
HEAVY = {"torch", "transformers", "sentence_transformers", "datasets", "numba", "faiss", "sklearn"}


@pytest.mark.parametrize("subpackage", SUBPACKAGES)
def test_every_export_loads_and_is_no_module(subpackage: str) -> None:
    """A name without a home fails only when a user touches it; a module of that name would hide it."""
    module = import_module(f"lexforge.{subpackage}")
    folder = Path(lexforge.__file__).parent / subpackage
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name) is not None
        assert name in dir(module)
        assert not (folder / f"{name}.py").exists() or name == "functional", name


def test_a_name_that_is_no_export_is_refused() -> None:
    """A misspelt name must fail as in any module."""
    with pytest.raises(AttributeError, match=r"module 'lexforge\.losses' has no attribute 'NoLoss'"):
        _ = import_module("lexforge.losses").NoLoss


def test_the_subpackages_import_without_what_is_slow() -> None:
    """`--help` waited nine seconds for torch and transformers, which it does not use."""
    names = ", ".join([*SUBPACKAGES, "settings"])
    code = f"import sys; from lexforge import {names}; print(*({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("name", ["os", "pickle", "losses.pickle", "..os", "no_subpackage"])
def test_only_subpackages_of_the_package_are_imported_by_name(name: str) -> None:
    """An attribute is a name that data could hold: it must never import a module of another package."""
    with pytest.raises(AttributeError, match="has no attribute"):
        getattr(lexforge, name)


def test_a_subpackage_may_list_names_of_the_package_alone(tmp_path: Path) -> None:
    """The list is read from source and imported later, so names of other packages stand in none."""
    source = "from typing import TYPE_CHECKING\nfrom lexforge.common.lazy import load_when_used\n"
    source += "if TYPE_CHECKING:\n    from os import system\n__getattr__, _ = load_when_used(__name__)\n"
    (tmp_path / "foreign_subpackage.py").write_text(source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", "import foreign_subpackage; foreign_subpackage.system"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "module 'foreign_subpackage' has no attribute 'system'" in done.stderr
