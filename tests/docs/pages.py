"""The pages of the documentation, with their code blocks and their commands; and a program that runs them.

A notebook is a page too, and its code cells are Python blocks.

    python tests/docs/pages.py blocks PAGE ...     # runs the Python blocks; prints {block: error} as JSON
    python tests/docs/pages.py help PROGRAM ...    # prints {program: help} as JSON

A program is a script of this repository, or a command such as "lexforge train cosent_sts".

One process runs all, so that imports are paid once. The blocks of a page share a namespace and an empty
working folder, as a reader would type them in order.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import shlex
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NamedTuple

from lexforge.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
OUTSIDE = [ROOT / "recipes" / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
PAGES = [README, *OUTSIDE, *sorted((ROOT / "docs").rglob("*.md")), *NOTEBOOKS]
# `<!-- not run: reason -->` above a block says why no test runs it. A reader of the page does not see it.
FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>.+?) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.M
)


class Block(NamedTuple):
    """A fenced block of a page or a code cell; `reason` says why it is not run, and is None if it is."""

    page: Path
    line: int
    language: str
    code: str
    reason: str | None

    @property
    def name(self) -> str:
        """Where the block stands, as `docs/train.md:12`."""
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"


def blocks(page: Path, language: str) -> list[Block]:
    """The blocks of a page in one language, in order."""
    if page.suffix == ".ipynb":
        return code_cells(page) if language == "python" else []
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        found.append(Block(page, line, match["language"], match["code"], match["reason"]))
    return [block for block in found if block.language == language]


def code_cells(notebook: Path) -> list[Block]:
    """The code cells of a notebook in order; their lines are those of the file, one per line of source."""
    text = notebook.read_text(encoding="utf-8")
    starts = [number for number, line in enumerate(text.splitlines(), 1) if line.strip() == '"source": [']
    return [
        Block(notebook, line, "python", "".join(cell["source"]), None)
        for line, cell in zip(starts, json.loads(text)["cells"], strict=True)
        if cell["cell_type"] == "code"
    ]


def prose(page: Path) -> str:
    """The text of a page without its blocks."""
    if page.suffix == ".ipynb":
        cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
        return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def commands(page: Path) -> list[tuple[str, list[str]]]:
    """The command lines of a page's shell blocks, as (where, words); continued lines are joined."""
    found = []
    for block in blocks(page, "bash"):
        for line in block.code.replace("\\\n", " ").splitlines():
            options = re.sub(r" \[(--[^\]]*)\]", lambda given: " " + given[1].replace("|", " "), line)
            words = shlex.split(options, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):  # VARIABLE=value command
                words = words[1:]
            if words:
                found.append((block.name, words))
    return found


def run_blocks(pages: dict[str, list[Block]]) -> dict[str, str]:
    """The error of each block, or an empty text; after an error the rest of its page is not run."""
    errors = {}
    for page, own in pages.items():
        namespace: dict[str, object] = {"__name__": "__main__"}
        os.chdir(tempfile.mkdtemp())
        failed = ""
        for block in own:
            if block.reason is not None:
                continue
            errors[block.name] = f"not run, because {failed} failed" if failed else ""
            if not failed:
                try:
                    # empty lines before it, so that an error names the line of the page
                    exec(compile("\n" * block.line + block.code, page, "exec"), namespace)
                except Exception:
                    failed, errors[block.name] = block.name, traceback.format_exc()
    return errors


def called_program(words: list[str]) -> str:
    """The script or the command of lexforge that a command line starts, or an empty text."""
    launched = next((place for place, word in enumerate(words) if word == "-m"), None)
    if words[0] == "accelerate" and launched is not None:
        words = words[launched + 1 :]
    if words[0] == "lexforge":
        name = next((name for name in COMMANDS if words[1:][: len(name.split())] == name.split()), None)
        if name is None:
            return "lexforge"
        recipe = [word for word in words[2:3] if name == "train" and not word.startswith("-")]
        return " ".join(["lexforge", name, *recipe])
    if words[0].rpartition("/")[2] in ("python", "accelerate", "bash"):
        return next((word for word in words if re.fullmatch(r"(?:recipes|scripts)/\S+\.(?:py|sh)", word)), "")
    return ""


def print_helps(programs: list[str]) -> dict[str, str]:
    """What each program prints for `--help`."""
    helps = {}
    for program in programs:
        out = io.StringIO()
        sys.argv = [program, "--help"]
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            if program.startswith("lexforge"):
                main([*program.split()[1:], "--help"])
            else:
                runpy.run_path(program, run_name="__main__")
        helps[program] = out.getvalue()
    return helps


if __name__ == "__main__":
    what, *names = sys.argv[1:]
    read = {name: blocks(Path(name).resolve(), "python") for name in names} if what == "blocks" else {}
    print(json.dumps(run_blocks(read) if what == "blocks" else print_helps(names)))
