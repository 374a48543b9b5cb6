"""Every Python block of the README runs as written, and its commands name things that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_readme_has_python_blocks() -> None:
    """A renamed fence would leave the next test without anything to run."""
    assert len(BLOCKS) >= 3


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_python_block_runs_as_written(block: str, tmp_path: Path) -> None:
    """The first thing a new user does is to copy it."""
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_map_of_the_rooms_says_what_the_architecture_allows() -> None:
    """A newcomer reads the map, and the test of the architecture enforces its own table."""
    source = (ROOT / "tests" / "test_architecture.py").read_text(encoding="utf-8")
    table = re.search(r"^MAY_IMPORT[^=]*= (\{.*?^\})", source, flags=re.DOTALL | re.MULTILINE)
    assert table is not None
    allowed = eval(table[1], {"set": set})  # a literal of our own, but for set()
    rows = re.findall(r"^\| `(\w+)/` \|.*\| ([^|]*) \|$", README, flags=re.MULTILINE)
    assert {room: set(re.findall(r"`(\w+)`", names)) for room, names in rows} == allowed


def test_the_commands_name_files_and_targets_that_exist() -> None:
    """A command in the README that does not run costs a reader's trust."""
    for path in re.findall(r"(?:launch|python|bash) ((?:recipes|scripts)/\S+)", README):
        assert (ROOT / path).is_file(), path
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\S+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    tests = re.findall(r"tests/[\w/]+(?:\.py)?", README)
    assert len(tests) > 15
    for path in tests:
        assert (ROOT / path).exists(), path
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
