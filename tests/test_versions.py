"""The package on other machines: as a wheel, with the oldest versions it allows, without what is optional."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from warm_processes import WarmProcesses

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
TEMPLATES = {f"lexforge/report/template/page.{suffix}" for suffix in ("html.jinja", "css", "js")}
TEMPLATES |= {f"lexforge/serve/template/page.{suffix}" for suffix in ("html", "css", "js")}
RECIPES = {path.relative_to(ROOT / "recipes").as_posix() for path in (ROOT / "recipes").rglob("*.py")}
RECIPES |= {path.relative_to(ROOT / "recipes").as_posix() for path in (ROOT / "recipes").rglob("*.yaml")}
UNWANTED = shutil.ignore_patterns("*.egg-info", "__pycache__")
OPTIONAL = [
    "datasets",
    "faiss",
    "fastapi",
    "lxml",
    "milvus_lite",
    "pymilvus",
    "pypdf",
    "qdrant_client",
    "triton",
    "tyro",
    "uvicorn",
]


def run(code: str, *arguments: str, cwd: Path, python: tuple[str, ...] = (sys.executable,)) -> str:
    """The output of a Python program, run where the checkout cannot be imported by accident."""
    command = [*python, "-c", textwrap.dedent(code), *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


IMPORT_ALL = """
    import importlib, pkgutil, sys
    import lexforge
    skipped = sys.argv[1:]
    names = ["lexforge"]
    for module in pkgutil.walk_packages(lexforge.__path__, "lexforge."):
        if not module.name.startswith(tuple(skipped) or "-"):
            names.append(module.name)
            print(importlib.import_module(module.name).__file__)
    print(lexforge.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by what pip calls, in a copy of the checkout."""
    copy, built = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    for name in ("src", "recipes"):
        shutil.copytree(ROOT / name, copy / name, ignore=UNWANTED)
    run("import sys, setuptools.build_meta as b; b.build_wheel(sys.argv[1])", str(built), cwd=copy)
    (found,) = built.glob("*.whl")
    return found


def test_the_source_distribution_holds_what_the_tests_and_the_documentation_need(tmp_path: Path) -> None:
    """Who packages lexforge has only this archive, and runs `make docs` and the tests from it."""
    copy, built, expected = tmp_path / "checkout", tmp_path / "built", set()
    built.mkdir()
    for name in (".ci", "docs", "notebooks", "recipes", "scripts", "src", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=UNWANTED)
        expected |= {path.relative_to(copy).as_posix() for path in (copy / name).rglob("*") if path.is_file()}
    files = "pyproject.toml setup.py MANIFEST.in Makefile mkdocs.yml constraints.txt constraints-oldest.txt "
    files += ".pre-commit-config.yaml README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md CITATION.cff LICENSE"
    for name in files.split():
        shutil.copy(ROOT / name, copy / name)
        expected.add(name)
    run("import sys, setuptools.build_meta as b; b.build_sdist(sys.argv[1])", str(built), cwd=copy)
    (found,) = built.glob("*.tar.gz")
    with tarfile.open(found) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert len(expected) > 600
    assert not expected - inside


def test_the_wheel_holds_every_module_the_recipes_and_the_command(wheel: Path) -> None:
    """A user without a checkout has nothing else: a folder that a wheel lacks shows in no other test."""
    archive = zipfile.ZipFile(wheel)
    inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    recipes = {f"lexforge/recipes/{name}" for name in RECIPES}
    assert {"lexforge/recipes/splade_v26.py", "lexforge/recipes/accelerate/fsdp.yaml"} <= recipes
    assert inside == SOURCES | recipes | TEMPLATES | {"lexforge/py.typed"}
    (commands,) = (name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt"))
    assert archive.read(commands).decode().split() == [
        "[console_scripts]",
        "lexforge",
        "=",
        "lexforge.cli:main",
    ]


METADATA = """
    import setuptools.build_meta, sys
    print(setuptools.build_meta.prepare_metadata_for_build_wheel(sys.argv[1]))
"""


def metadata(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **addresses: str
) -> importlib.metadata.PackageMetadata:
    """What a package index shows of the package, if it is built with these addresses."""
    copy, built = folder / "checkout", folder / "built"
    built.mkdir(parents=True)
    (copy / "src" / "lexforge").mkdir(parents=True)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    for name in ("LEXFORGE_REPOSITORY_URL", "LEXFORGE_SITE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, address in addresses.items():
        monkeypatch.setenv(name, address)
    (found,) = [built / run(METADATA, str(built), cwd=copy).splitlines()[-1]]
    return importlib.metadata.PathDistribution(found).metadata


def test_a_release_leads_to_its_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package index shows the README alone, where a link to a file of the checkout leads nowhere."""
    place = "https://example.invalid/team/lexforge"
    shown = metadata(tmp_path, monkeypatch, LEXFORGE_REPOSITORY_URL=place, LEXFORGE_SITE_URL=f"{place}/site")
    assert {line.partition(", ")[0] for line in shown.get_all("Project-URL")} == {
        "Changelog",
        "Documentation",
        "Issues",
        "Source",
    }
    text = shown.get_payload()
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(links) > 30
    assert all(link.startswith("https://") for link in links)
    pictures = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", text)
    assert pictures
    assert all(link.startswith(f"{place}/raw/main/docs/images/") for link in pictures)


def test_a_build_without_addresses_shows_the_readme_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows the addresses before the release, and an invented one would mislead."""
    shown = metadata(tmp_path, monkeypatch)
    assert shown.get_all("Project-URL") is None
    assert shown.get_payload().strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    assert shown["Description-Content-Type"] == "text/markdown"


def test_the_citation_names_the_version() -> None:
    """Who cites a version must cite the one that is released."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_wheel_installs_and_every_module_of_it_imports(wheel: Path, tmp_path: Path) -> None:
    """An editable installation finds files that a wheel lacks: a folder without `__init__.py`, `py.typed`."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run(
        [*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], check=True
    )
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    # its dependencies; the .pth files there, the editable lexforge among them, are not read
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    files = run(IMPORT_ALL, cwd=tmp_path, python=(str(python), "-I")).split()
    assert all(Path(file).is_relative_to(packages) for file in files)
    assert len(files) == len(SOURCES)
    printed = [str(python), "-I", "-m", "lexforge", "recipe", "splade_v26"]
    recipe = subprocess.run(printed, cwd=tmp_path, check=True, capture_output=True).stdout
    assert recipe == (ROOT / "recipes" / "splade_v26.py").read_bytes()


WITHOUT = f"""
    import importlib.machinery, importlib.metadata

    hidden = {OPTIONAL}
    find_spec = importlib.machinery.PathFinder.find_spec
    importlib.machinery.PathFinder.find_spec = staticmethod(
        lambda name, *rest: None if name.split(".")[0] in hidden else find_spec(name, *rest)
    )
    from_name = importlib.metadata.Distribution.from_name

    def without(name):
        if name in hidden:
            raise importlib.metadata.PackageNotFoundError(name)
        return from_name(name)

    importlib.metadata.Distribution.from_name = staticmethod(without)
"""


SKIPPED = ["lexforge.kernels.splade_head.triton", "lexforge.commands"]  # need an optional package


@pytest.fixture(scope="module")
def without_optional(warm: WarmProcesses, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a machine without the optional packages prints: the file of each module that imports there, and
    what each function says that needs such a package.
    """
    code = """
        import traceback
        import lexforge.retrieval, lexforge.serve, torch
        from lexforge.data.text_files import check_readers
        from lexforge.kernels.splade_head import splade_head

        one = torch.ones(1, 1, 1)
        calls = {
            "triton": lambda: splade_head(one, one[0], None, one[0], impl="triton"),
            "pypdf": lambda: check_readers([".pdf"]),
            "lxml": lambda: check_readers([".html"]),
            "qdrant_client": lambda: lexforge.retrieval.QdrantIndex("x.qdrant"),
            "fastapi": lambda: lexforge.serve.create_app("x"),
            "uvicorn": lambda: lexforge.serve.run_server("x", "127.0.0.1", 0),
            "pymilvus": lambda: lexforge.retrieval.MilvusIndex("x.db"),
            "milvus_lite": lambda: lexforge.retrieval.MilvusIndex("x.db"),
        }
        for name, call in calls.items():
            if name == "milvus_lite":
                hidden.remove("pymilvus")
            try:
                call()
            except ImportError as error:
                shown = "".join(traceback.format_exception(error))
                print(name, shown.count("Traceback (most recent call last)"), error, sep="\\t")
    """
    programs = "".join(map(textwrap.dedent, (WITHOUT, IMPORT_ALL, code)))
    folder = tmp_path_factory.mktemp("without")
    done = warm.completed("-c", programs, *SKIPPED, folder=folder, bare=True, forget=OPTIONAL)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def messages(without_optional: list[str]) -> dict[str, str]:
    """What each function that needs an optional package says on a machine that has none of them."""
    return dict(line.split("\t", 1) for line in without_optional if line.count("\t") == 2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("triton", "pip install '.[triton]' (No module named 'triton')"),
        ("pypdf", "pip install '.[documents]' (No module named 'pypdf')"),
        ("lxml", "pip install '.[documents]' (No module named 'lxml')"),
        ("qdrant_client", "pip install '.[qdrant]' (No module named 'qdrant_client')"),
        ("fastapi", "pip install '.[serve]' (No module named 'fastapi')"),
        ("uvicorn", "pip install '.[serve]' (No module named 'uvicorn')"),
        ("pymilvus", "pip install '.[milvus]' (No module named 'pymilvus')"),
        ("milvus_lite", "pip install '.[milvus]' (No module named 'milvus_lite')"),
    ],
)
def test_a_missing_package_gives_one_line_that_names_it(
    name: str, message: str, messages: dict[str, str]
) -> None:
    """A user must learn what to install, and not read a traceback of someone else's import."""
    if name == "milvus_lite":
        pytest.importorskip("pymilvus", reason="the extra `milvus` is not installed")
    assert name in messages, f"raised no ImportError; those that did: {messages}"
    tracebacks, line = messages[name].split("\t")
    assert line.endswith(message), line
    assert tracebacks == "1", "another error's traceback stands above it"


def test_every_module_imports_without_the_optional_packages(without_optional: list[str]) -> None:
    """Nothing but the Triton kernels and the commands, which need tyro, may need more than a machine has."""
    files = [line for line in without_optional if "\t" not in line]
    folders = tuple(name.replace(".", "/") + "/" for name in SKIPPED)
    assert len(files) == len([name for name in SOURCES if not name.startswith(folders)])


def lower_bounds() -> dict[str, str]:
    """Every distribution that pyproject.toml names for users, extras too, with its lower bound."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    names = r'"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)'
    return dict(re.findall(names, text.partition("dependencies = [")[2].partition("\ndev = [")[0]))


def test_every_imported_package_is_declared() -> None:
    """A developer's machine has much that a user's has not; what is imported must be asked for by name."""
    trees = [ast.parse((ROOT / "src" / name).read_text(encoding="utf-8")) for name in SOURCES]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    imports = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imports |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    packages = {name.split(".")[0] for name in imports} - {"lexforge", *sys.stdlib_module_names}
    assert {"torch", "faiss", "sklearn"} <= packages
    distributions = importlib.metadata.packages_distributions()
    owners = {
        package: {re.sub("[-_.]+", "-", name.lower()) for name in distributions[package]}
        for package in packages & distributions.keys()  # an extra may not be installed here
    }
    assert len(owners) > 10
    assert not {package: names for package, names in owners.items() if not names & lower_bounds().keys()}


def test_the_oldest_python_is_one_that_the_tested_set_installs_on() -> None:
    """The first command of the README must not end in "no matching distribution"; all name one number."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    oldest = project["project"]["requires-python"].removeprefix(">=")
    assert project["tool"]["mypy"]["python_version"] == oldest
    assert project["tool"]["ruff"]["target-version"] == "py" + oldest.replace(".", "")
    assert f"Python {oldest} or newer" in (ROOT / "README.md").read_text(encoding="utf-8")
    installed = {distribution.name: distribution for distribution in importlib.metadata.distributions()}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    names = [line.split("==")[0] for line in lines if not line.startswith("#")]
    asked = {name: installed[name].metadata.get("Requires-Python") for name in names if name in installed}
    assert len(asked) > 50
    assert not {
        name: versions for name, versions in asked.items() if oldest not in SpecifierSet(versions or "")
    }


def test_the_oldest_set_is_the_lower_bounds() -> None:
    """`make test-oldest` proves what pyproject.toml says, not something newer."""
    bounds = lower_bounds()
    assert {"torch", "triton", "grpcio", "pymilvus", "milvus-lite"} <= bounds.keys()
    lines = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines if not line.startswith("#"))

    def padded(version: str) -> str:
        return ".".join([*version.split("."), "0", "0"][:3]) if version.count(".") < 2 else version

    assert {name: padded(pins[name]) for name in bounds} == {name: padded(v) for name, v in bounds.items()}
