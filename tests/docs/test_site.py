"""The hooks of the documentation build: links for GitHub and for the site, and names without a docstring."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def site() -> Any:
    """The module of the hooks, which mkdocs loads from its file."""
    spec = importlib.util.spec_from_file_location("documentation_site", ROOT / "docs" / "hooks" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["documentation_site"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("page", "link", "translated"),
    [
        ("README.md", "docs/train.md#from-pairs", "train.md#from-pairs"),
        ("README.md", "recipes/README.md", "recipes.md"),
        ("docs/train.md", "../recipes/README.md#presets", "recipes.md#presets"),
        ("docs/train.md", "losses.md", "losses.md"),
        ("docs/api/index.md", "../losses.md", "../losses.md"),
        ("docs/notebook/index.md", "../../recipes/README.md#presets", "../recipes.md#presets"),
        ("recipes/README.md", "../docs/losses.md", "losses.md"),
        ("README.md", "recipes/splade_v26.py", "source/recipes/splade_v26.py.txt"),
        ("docs/train.md", "../notebooks/dense-to-splade.ipynb", "source/notebooks/dense-to-splade.ipynb"),
        ("docs/train.md", "https://sbert.net", "https://sbert.net"),
        ("docs/train.md", "#from-pairs", "#from-pairs"),
    ],
)
def test_a_link_for_github_becomes_a_link_of_the_site(
    site: Any, page: str, link: str, translated: str
) -> None:
    """The same page is read in two places, and its links must work in both; a code block stays as it is."""
    code = f"```\n[code]({link})\n```"
    assert site.translate(f"[text]({link})\n\n{code}", page) == f"[text]({translated})\n\n{code}"


def test_a_link_to_a_file_that_does_not_exist_stops_the_build(site: Any) -> None:
    """Otherwise the site would hold a link to nothing."""
    with pytest.raises(site.PluginError, match=r"recipes/no_such\.py"):
        site.translate("[text](recipes/no_such.py)", "README.md")


def test_a_public_name_or_method_without_a_docstring_is_found(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API reference leaves a name without a docstring out, so nobody would see that it is missing."""
    subpackage = tmp_path / "lexforge" / "sub"
    subpackage.mkdir(parents=True)
    (tmp_path / "lexforge" / "__init__.py").write_text('"""A package."""\n')
    (subpackage / "__init__.py").write_text(
        '"""A subpackage."""\nfrom lexforge.sub.parts import Kept, bare\n__all__ = ["Kept", "bare"]\n'
    )
    (subpackage / "parts.py").write_text(
        '"""Parts."""\n\n\ndef bare():\n    pass\n\n\nclass Kept:\n    """A class."""\n\n'
        "    def method(self):\n        pass\n\n    def _own(self):\n        pass\n"
    )
    monkeypatch.setattr(site, "PACKAGE", tmp_path / "lexforge")
    names = {name for name in site.public_names() if ".sub." in name}
    assert names == {"lexforge.sub.Kept", "lexforge.sub.bare"}
    assert site.undocumented(names) == {"lexforge.sub.bare", "lexforge.sub.Kept.method"}


def test_every_subpackage_with_public_names_has_a_page_of_the_reference(site: Any) -> None:
    """A new subpackage must not wait for the build of the documentation to be missed."""
    modules = {name.rpartition(".")[0] for name in site.public_names()}
    assert len(modules) > 8
    text = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    assert not {module for module in modules if f"::: {module}" not in text}
