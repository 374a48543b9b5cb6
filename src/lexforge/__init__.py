"""Train neural sparse (SPLADE) and dense retrievers on sentence-transformers.

Importing this package has no effect and does not import torch. Its subpackages (`lexforge.losses`,
`lexforge.models`, `lexforge.data`, `lexforge.training`, `lexforge.retrieval` and others) are imported when
they are first named, by `import lexforge.losses` or as an attribute of `lexforge`.
"""

from importlib import import_module as _import_module
from pkgutil import iter_modules as _iter_modules
from types import ModuleType as _ModuleType

__version__ = "0.1.0"


def __getattr__(name: str) -> _ModuleType:
    """Import a subpackage when it is first read as an attribute (PEP 562)."""
    if name in _subpackages():
        return _import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_subpackages()})


def _subpackages() -> set[str]:
    return {module.name for module in _iter_modules(__path__)}
