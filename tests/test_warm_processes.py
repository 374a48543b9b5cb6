"""A program in the warm process ends, prints and fails as in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from warm_processes import WarmProcesses

SHOWS = """
import os, sys
print(__name__, sys.argv[1:], sys.orig_argv[1:], os.getcwd(), os.environ["SHOWN"], repr(sys.stdin.read()))
"""


@pytest.mark.parametrize("form", ["a script", "-m", "-c"])
def test_it_has_words_folder_variables_and_no_input(
    form: str, warm: WarmProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tests of commands look at must be what a user's process would have."""
    monkeypatch.setenv("SHOWN", "한국")
    (tmp_path / "shows.py").write_text(SHOWS, encoding="utf-8")
    words = {"a script": ["shows.py"], "-m": ["-m", "shows"], "-c": ["-c", SHOWS]}[form]
    command = [sys.executable, *words, "one", "--two"]
    own = subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    done = warm.completed(*words, "one", "--two", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, own.stdout, own.stderr)
    assert "'--two'] " in done.stdout


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit()",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('error: a line')",
        "print('before'); 1 / 0",
        "import os; os._exit(4)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    ],
)
def test_it_ends_as_a_process_of_its_own(code: str, warm: WarmProcesses) -> None:
    """A command that fails must not pass here, and one that ends well must not fail."""
    own = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    done = warm.completed("-c", code)
    assert (done.returncode, done.stdout) == (own.returncode, own.stdout)
    assert done.stderr.splitlines()[-1:] == own.stderr.splitlines()[-1:]


def test_packages_to_forget_are_loaded_anew(warm: WarmProcesses) -> None:
    """A program that must work without the package would find it here, and a first import would be none."""
    code = "import sys; print(*({'lexforge', 'lexforge.losses', 'torch'} - sys.modules.keys()))"
    assert warm.completed("-c", code).stdout.split() == []
    for others in ({"forget": ["lexforge"]}, {"bare": True}):
        done = warm.completed("-c", code, **others)
        assert set(done.stdout.split()) == {"lexforge", "lexforge.losses"}


def test_workers_share_the_processes_that_have_loaded(warm: WarmProcesses, tmp_path: Path) -> None:
    """Another worker loads nothing, waits for no program of the first, and ends nothing by its own end."""
    code = "import psutil; print(psutil.Process().parents()[1].pid)"  # behind the process of the worker
    loaded = warm.completed("-c", code).stdout
    (waiting,) = warm.start("-c", ["import time; time.sleep(600)"])
    other = WarmProcesses(Path(os.environ["LEXFORGE_TESTS_FOLDER"]), tmp_path / "log.txt")
    assert other.completed("-c", code).stdout == loaded
    other.close()
    os.kill(waiting, signal.SIGKILL)
    assert warm.end() == [-signal.SIGKILL]
    assert warm.completed("-c", code).stdout == loaded
