"""The import rule of the package, read from the source: a subpackage imports only what stands above it."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

from warm_processes import WarmProcesses

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "lexforge"
MAY_IMPORT: dict[str, set[str]] = {
    "common": set(),
    "settings": {"common"},
    "storage": {"common"},
    "kernels": {"common", "storage"},
    "models": {"common", "settings", "storage", "kernels"},
    "losses": {"common", "settings", "kernels", "models"},
    "retrieval": {"common", "settings", "storage", "kernels"},
    "data": {"common", "settings", "storage", "models"},
    "corpus": {"common", "settings", "storage", "models", "retrieval"},
    "teachers": {"common", "settings", "storage", "models", "retrieval", "data", "corpus"},
    "negatives": {"common", "settings", "models", "retrieval", "data", "corpus"},
    "evaluation": {"common", "storage", "models", "retrieval", "data", "corpus"},
    "adapt": {"common", "settings", "models", "retrieval", "data", "corpus", "evaluation"},
    "export": {"common", "settings", "storage", "models", "retrieval", "data", "corpus", "evaluation"},
    "sparsity": {"common", "settings", "models", "losses", "retrieval", "corpus", "evaluation"},
    "runs": {"common", "settings", "storage", "kernels", "losses"},
    "report": {"common", "storage", "models", "corpus", "evaluation", "runs"},
    "serve": {"common", "settings", "storage", "models", "retrieval", "data", "corpus"},
}
MAY_IMPORT["training"] = set(MAY_IMPORT)
MAY_IMPORT["commands"] = set(MAY_IMPORT)
# An optional package is imported only in the files that own it.
OWNERS = {
    "triton": {"kernels/splade_head/triton"},
    "pymilvus": {"retrieval/servers/milvus.py"},
    "onnx": {"export/models/files.py"},
    "onnxruntime": {"export/models/files.py"},
    "onnxscript": {"export/models/files.py"},
    "bokeh": {"report"},
    "jinja2": {"report"},
    "charset_normalizer": {"data/encodings.py"},
    "lxml": {"data/text_files.py"},
    "pypdf": {"data/text_files.py"},
    "fastembed": {"export/models/fastembed.py"},
    "qdrant_client": {"retrieval/servers/qdrant.py"},
    "fastapi": {"serve/app.py"},
    "starlette": {"serve/app.py"},
    "uvicorn": {"serve/server.py"},
}


@cache
def imported_names(path: Path, *, typing_only: bool = True) -> list[tuple[int, str]]:
    """Every absolute module name that a file imports, at any depth, with its line.

    Without `typing_only`, what stands at the top below `if TYPE_CHECKING:` is left out.
    """
    found = []
    package = ("lexforge", *path.relative_to(PACKAGE).parent.parts) if path.is_relative_to(PACKAGE) else ()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if not typing_only:
        tree.body = [block for block in tree.body if not _is_for_types(block)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            found.append((node.lineno, module))
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return found


def _is_for_types(block: ast.stmt) -> bool:
    return isinstance(block, ast.If) and getattr(block.test, "id", None) == "TYPE_CHECKING"


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_a_subpackage_imports_only_what_stands_above_it() -> None:
    """A change that reaches further down ties the numeric leaf to the trainer; it is refused here."""
    assert len(files()) > 100
    wrong = []
    for path in files():
        subpackage = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if subpackage not in MAY_IMPORT:  # the package itself and its command line
            continue
        allowed = MAY_IMPORT[subpackage] | {subpackage, "__version__"}
        for line, name in imported_names(path):
            if name.startswith("lexforge.") and name.split(".")[1] not in allowed:
                place = f"{path.relative_to(ROOT)}:{line}"
                wrong.append(f"{place} imports {name}; {subpackage} may import {sorted(allowed)}")
    assert not wrong, "\n".join(wrong)


def test_no_files_import_each_other_in_a_circle() -> None:
    """Two files that need each other are one idea, or a third one is missing; also inside a subpackage.

    An import for types alone counts: whoever reads one of the files must read the other. Only the lists of
    names in `__init__.py` are left out, which every file of a subpackage stands in.
    """
    modules = {module_name(path): path for path in files()}
    arrows = {
        name: {
            found
            for _, found in imported_names(path, typing_only=path.name != "__init__.py")
            if found in modules
        }
        - {name}
        for name, path in modules.items()
    }
    remaining = dict(arrows)
    while leaves := [name for name, found in remaining.items() if not found & remaining.keys()]:
        for name in leaves:
            del remaining[name]
    assert not remaining, f"in or behind a circle: {sorted(remaining)}"


def module_name(path: Path) -> str:
    """The dotted name by which a file is imported."""
    parts = ("lexforge", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_an_optional_package_is_imported_by_its_owner_only() -> None:
    """A missing extra must fail in one place, with the name of the extra; a heavy package has one home."""
    wrong = []
    for path in files():
        relative = path.relative_to(PACKAGE).as_posix()
        for line, name in imported_names(path):
            for optional, owners in OWNERS.items():
                owned = any(relative.startswith(owner) for owner in owners)
                if not owned and (name == optional or name.startswith(optional + ".")):
                    place = f"{path.relative_to(ROOT)}:{line}"
                    wrong.append(f"{place} imports {name}; only {sorted(owners)} may")
    assert not wrong, "\n".join(wrong)


def test_one_file_touches_private_methods_of_the_trainer() -> None:
    """They change without notice: `tests/runs/test_private_trainer.py` must know each one in use."""
    from sentence_transformers.base.trainer import BaseTrainer

    private = {name for name in dir(BaseTrainer) if name.startswith("_") and not name.startswith("__")}
    assert "_save_checkpoint" in private
    for path in files():
        if path.relative_to(PACKAGE).as_posix() == "runs/resumable.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node, "name" if isinstance(node, ast.FunctionDef) else "attr", None)
            owner = getattr(getattr(node, "value", None), "id", "self")
            assert name not in private or owner not in ("self", "trainer"), (
                f"{path.relative_to(ROOT)}:{node.lineno} overrides, calls or sets {name}"  # type: ignore[attr-defined]
            )


def test_recipes_import_no_recipe() -> None:
    """A recipe is copied and changed by its reader: it must stand alone."""
    stems = {path.stem for path in (ROOT / "recipes").glob("*.py")}
    for path in (ROOT / "recipes").glob("*.py"):
        for line, name in imported_names(path):
            assert name.split(".")[0] not in stems | {"recipes"}, (
                f"{path.relative_to(ROOT)}:{line} imports {name}"
            )


def test_import_has_no_effect_and_needs_no_torch() -> None:
    """`import lexforge` in a command-line tool or a documentation build must cost nothing."""
    code = (
        "import sys, logging, os; before = dict(os.environ), logging.root.level; import lexforge; "
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules; "
        "assert before == (dict(os.environ), logging.root.level)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_subpackage_is_an_attribute_of_the_package(warm: WarmProcesses) -> None:
    """`import lexforge; lexforge.losses` is what a user types first."""
    subpackages = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    code = (
        "import sys\n"
        "assert 'lexforge' not in sys.modules\n"
        "import lexforge\n"
        f"for name in {subpackages}:\n"
        "    assert name in dir(lexforge) and getattr(lexforge, name).__name__ == 'lexforge.' + name\n"
        "assert lexforge.losses.functional.info_nce and lexforge.losses.NWSLoss\n"
        "assert not hasattr(lexforge, 'no_such_subpackage')\n"
    )
    done = warm.completed("-c", code, forget=["lexforge"])
    assert done.returncode == 0, done.stderr
