"""Hooks of the documentation build: pages that lie outside docs/, links to files of the repository, the API.

GitHub shows README.md and recipes/README.md where they lie, and the site shows them as pages. Their links,
and those of docs/ that leave the folder, are written for GitHub, so the build translates them. A link to
another file of the repository leads to a copy of it in the site.
"""

from __future__ import annotations

import ast
import posixpath
import re
import zlib
from pathlib import Path
from typing import Any

import griffe
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "lexforge"
# A page of the repository outside docs/ -> its page in the site.
OUTSIDE = {
    "README.md": "index.md",
    "recipes/README.md": "recipes.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
CODE = re.compile(r"(^```.*?^```$)", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def site_path(target: str) -> str:
    """The place in the site of a file of the repository."""
    if target in OUTSIDE:
        return OUTSIDE[target]
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    if not (ROOT / target).is_file():
        raise PluginError(f"a link leads to {target}, which is no file of the repository")
    # A browser shows text and would save a Python file; a notebook is to be saved.
    return f"source/{target}" if target.endswith(".ipynb") else f"source/{target}.txt"


def links(markdown: str, source: str) -> list[str]:
    """The files of the repository that a page links to, as paths from the root of the repository."""
    text = "".join(CODE.split(markdown)[::2])
    return [
        posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1])) for link in LINK.finditer(text)
    ]


def translate(markdown: str, source: str) -> str:
    """The page with its links written for the site; code blocks stay as they are."""
    page = posixpath.dirname(site_path(source)) or "."

    def replace(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        return f"]({posixpath.relpath(site_path(target), page)}{link[2] or ''})"

    parts = CODE.split(markdown)
    parts[::2] = [LINK.sub(replace, part) for part in parts[::2]]
    return "".join(parts)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages outside docs/ and the files that the pages link to."""
    pages = {source: (ROOT / source).read_text(encoding="utf-8") for source in OUTSIDE}
    for source, text in pages.items():
        files.append(File.generated(config, OUTSIDE[source], content=translate(text, source)))
    for file in files.documentation_pages():
        if file.src_uri not in OUTSIDE.values():
            pages[f"docs/{file.src_uri}"] = file.content_string
    linked = {target for source, text in pages.items() for target in links(text, source)}
    for target in sorted(linked):
        path = site_path(target)
        if path.startswith("source/"):
            files.append(File.generated(config, path, content=(ROOT / target).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Translate the links of the pages in docs/."""
    if page.file.src_uri in OUTSIDE.values():
        return markdown  # done in `on_files`
    return translate(markdown, f"docs/{page.file.src_uri}")


def public_names() -> set[str]:
    """Every name in the `__all__` of a subpackage or of `lexforge.losses.functional`, with its module."""
    names = set()
    for path in [*PACKAGE.glob("*/__init__.py"), *PACKAGE.glob("*/functional.py")]:
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names |= {f"{module}.{name}" for name in ast.literal_eval(node.value)}
    return names


def undocumented(names: set[str]) -> set[str]:
    """Public names, and public methods and properties of public classes, that have no docstring."""
    package = griffe.load("lexforge", search_paths=[PACKAGE.parent], resolve_aliases=True)
    found = set()
    for name in names:
        member = package[name.removeprefix("lexforge.")]
        own = [member, *member.members.values()] if member.is_class else [member]
        for each in own:
            documented = each.has_docstring or each.name.startswith("_")
            if not documented and not each.inherited and (each is member or each.is_function):
                found.add(f"{name}.{each.name}" if each is not member else name)
    return found


def on_post_build(config: Any) -> None:
    """Fail if the API reference lacks a public name, or if one has no docstring."""
    inventory = (Path(config["site_dir"]) / "objects.inv").read_bytes().split(b"\n", 4)[4]
    shown = {line.split()[0].decode() for line in zlib.decompress(inventory).splitlines()}
    names = public_names()
    # A module has a page of its own, and a function may have the name of its module: there the members count.
    parents = {name.rpartition(".")[0] for name in shown}
    if missing := sorted(names - shown - parents):
        raise PluginError(f"the API reference lacks public names: {', '.join(missing)}")
    if bare := sorted(undocumented(names)):
        raise PluginError(f"public names without a docstring: {', '.join(bare)}")
