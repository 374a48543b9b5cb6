"""README, docs, notebooks: Python blocks run as written, commands name what exists, links lead somewhere."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from warm_processes import WarmProcesses

HELPER = Path(__file__).parent / "docs" / "pages.py"
_spec = importlib.util.spec_from_file_location("documentation_pages", HELPER)
assert _spec is not None
assert _spec.loader is not None
pages = importlib.util.module_from_spec(_spec)
sys.modules["documentation_pages"] = pages
_spec.loader.exec_module(pages)

ROOT, README, PAGES = pages.ROOT, pages.README, pages.PAGES
DOCS = [page for page in PAGES if page != README]
ALL_TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def printed(warm: WarmProcesses, *arguments: str, folder: Path) -> dict[str, str]:
    """What the helper prints as JSON in its last line."""
    done = warm.completed(HELPER, *arguments, folder=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_readme_has_python_blocks() -> None:
    """A renamed fence would leave the next tests without anything to run."""
    assert pages.blocks(README, "python")
    assert sum(len(pages.blocks(page, "python")) for page in DOCS) >= 15


@pytest.mark.parametrize("notebook", pages.NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_holds_no_outputs(notebook: Path) -> None:
    """Outputs make each change unreadable, and they may hold paths of the machine that ran it."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(cells) > 3
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


@pytest.mark.parametrize("notebook", pages.NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_code_cell_has_its_line_of_the_file(notebook: Path) -> None:
    """An error must lead to the cell: the line after that of the block is the cell's first."""
    lines = notebook.read_text(encoding="utf-8").splitlines()
    for block in pages.blocks(notebook, "python"):
        first = json.dumps(block.code.splitlines(keepends=True)[0], ensure_ascii=False)
        assert lines[block.line].strip().rstrip(",") == first


@pytest.mark.parametrize("block", pages.blocks(README, "python"), ids=lambda block: block.name)
def test_a_python_block_runs_as_written(block: Any, warm: WarmProcesses, tmp_path: Path) -> None:
    """The first thing a new user does is to copy it: each block of the README runs alone."""
    done = warm.completed("-c", block.code, folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="session")  # a worker may run tests of other files between those of this one
def errors(warm: WarmProcesses, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The error of each Python block of the docs that is run, or an empty text."""
    return printed(warm, "blocks", *map(str, DOCS), folder=tmp_path_factory.mktemp("docs"))


@pytest.mark.parametrize(
    "block", [block for page in DOCS for block in pages.blocks(page, "python")], ids=lambda block: block.name
)
def test_a_python_block_of_the_docs_runs(block: Any, errors: dict[str, str]) -> None:
    """A tutorial whose code fails teaches nothing; the blocks of one page run in their order."""
    if block.reason is not None:
        pytest.skip(block.reason)
    assert errors[block.name] == ""


def test_a_block_that_fails_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper must see an error, name its line in the page, and not run what builds on it."""
    monkeypatch.chdir(tmp_path)  # it is restored after the helper has changed it
    made = [
        pages.Block(README, 7, "python", "x = 1\nx / 0\n", None),
        pages.Block(README, 9, "python", "raise SystemExit('must not run')\n", "it needs a hub"),
        pages.Block(README, 12, "python", "y = 2\n", None),
    ]
    first, second = pages.run_blocks({"README.md": made}).values()
    assert 'File "README.md", line 9' in first  # the second line of a block whose fence stands in line 7
    assert "ZeroDivisionError" in first
    assert second == "not run, because README.md:7 failed"


def test_the_map_of_the_subpackages_has_the_order_of_the_architecture() -> None:
    """A newcomer reads the map, and the test of the architecture enforces its own table."""
    allowed = runpy.run_path(str(ROOT / "tests" / "test_architecture.py"))["MAY_IMPORT"]
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    subpackages = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", page, flags=re.MULTILINE)
    assert set(subpackages) == set(allowed)
    for subpackage, names in allowed.items():
        assert names <= set(subpackages[: subpackages.index(subpackage)]), subpackage
    for place in re.findall(r"`(\w+/[\w/]+\.py)`", page):
        if place.split("/")[0] in subpackages:
            assert (ROOT / "src" / "lexforge" / place).is_file(), place


COMMANDS = [command for page in PAGES for command in pages.commands(page)]  # (where, words)


@pytest.fixture(scope="session")
def helps(warm: WarmProcesses) -> dict[str, str]:
    """The help of every recipe, script and command that a page calls, benchmarks excepted."""
    programs = {pages.called_program(words) for _, words in COMMANDS} - {""}
    return printed(warm, "help", *sorted(name for name in programs if "/bench/" not in name), folder=ROOT)


def test_the_commands_name_files_targets_and_extras_that_exist() -> None:
    """A command in the README that does not run costs a reader's trust."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = 0
    for where, words in COMMANDS:
        program = pages.called_program(words)
        assert program != "lexforge" or words[1].startswith("-"), f"{where}: no command {words[1]!r}"
        if program:
            assert program.startswith("lexforge") or (ROOT / program).is_file(), f"{where}: {program}"
            found += 1
        for configuration in re.findall(r"recipes/accelerate/\S+", " ".join(words)):
            assert (ROOT / configuration).is_file(), f"{where}: {configuration}"
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, flags=re.MULTILINE), f"{where}: make {words[1]}"
    assert found > 30
    for extras in re.findall(r"(?:lexforge|\"\.)\[([\w,]+)\]", ALL_TEXT):
        assert set(extras.split(",")) <= project["optional-dependencies"].keys(), extras


def test_the_commands_have_flags_that_their_programs_know(helps: dict[str, str]) -> None:
    """A renamed flag leaves pages behind that nobody would notice."""
    checked = 0
    for where, words in COMMANDS:
        program = pages.called_program(words)
        if program in helps:
            known = set(re.findall(r"--[\w.-]+", helps[program]))
            own = words[words.index(program.split()[0]) :]  # what stands before belongs to the launcher
            flags = {word.split("=")[0] for word in own if word.startswith("--")}
            assert flags <= known, f"{where}: {program} does not know {sorted(flags - known)}"
            checked += len(flags)
    assert checked > 80


# Flags in sentences that belong to accelerate or to a benchmark; NAME is a placeholder.
OTHER_FLAGS = {"--machine_rank", "--loss.NAME", "--k"}


def test_flags_in_a_sentence_are_flags_of_some_program(helps: dict[str, str]) -> None:
    """A flag that a sentence names must exist as well as one in a command."""
    known = set(re.findall(r"--[\w.-]+", "".join(helps.values()))) | OTHER_FLAGS
    for page in PAGES:
        named = set(re.findall(r"`(--[\w.-]+)[ `]", pages.prose(page)))
        assert named <= known, f"{page.name} names {sorted(named - known)}"


def test_the_pages_name_tests_and_link_to_files_that_exist() -> None:
    """A promise names the test that holds it, a link must work on GitHub too, and no placeholder is left."""
    assert not [page.name for page in PAGES if "@@" in page.read_text(encoding="utf-8")]
    tests = re.findall(r"tests/[\w/]+(?:\.py)?", ALL_TEXT)
    assert len(tests) > 15
    for path in tests:
        assert (ROOT / path).exists(), path
    for page in PAGES:
        for link in re.findall(r"\]\((?![a-z]+:|#)([^)#\s]+)", pages.prose(page)):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
