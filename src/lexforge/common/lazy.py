"""Subpackages that load a name when it is first used: `--help` does not wait for torch and transformers."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def load_when_used(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the module functions `__getattr__` and `__dir__` of a subpackage (PEP 562).

    The subpackage writes its imports below `if TYPE_CHECKING:`, where type checkers and readers find them and
    Python does not run them. This function reads them there, so each name is written once. An export must not
    have the name of a module of the subpackage: once imported, the module would stand in its place.

    Args:
        package: The name of the package whose `__init__` calls this function.

    Returns:
        `__getattr__`, which imports the home of a name and keeps the name in the subpackage, and `__dir__`,
        which lists all names.
    """
    spec = sys.modules[package].__spec__
    assert spec is not None
    source = spec.loader.get_source(package)  # type: ignore[union-attr]  # every loader of source files has it
    homes = {  # name -> the module that defines it, one of this package alone
        alias.name: line.module
        for line in ast.walk(ast.parse(source))
        if isinstance(line, ast.ImportFrom) and line.module and line.module.startswith("lexforge.")
        for alias in line.names
    }

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == package:  # a module of the subpackage itself
            return import_module(f"{package}.{name}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)  # the next use finds it without this function
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names
