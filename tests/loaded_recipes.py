"""A recipe as a module, whose functions a test calls."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

RECIPES = Path(__file__).resolve().parents[1] / "recipes"


def load_recipe(name: str) -> Any:
    """Load a recipe by its name, anew."""
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and tyro resolve annotations there
    spec.loader.exec_module(module)
    return module
