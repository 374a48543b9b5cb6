"""What every recipe and command does with its command line."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from warm_processes import WarmProcesses

from lexforge.common.command_line import one_line_errors, run_command

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.py"))
# Prints the help of each script of its arguments, and which slow packages are loaded by then.
HELPS = """
import contextlib, io, json, runpy, sys
slow = {"torch", "transformers", "sentence_transformers", "datasets", "numba", "faiss", "sklearn"}
for path in sys.argv[1:]:
    sys.argv = [path, "--help"]
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) as out:
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            assert not end.code
    out.seek(0)
    print(json.dumps([out.read(), sorted(slow & set(sys.modules))]))
"""


@dataclass(frozen=True)
class Settings:
    number: int = 1
    """A number."""

    def __post_init__(self) -> None:
        if self.number > 9:
            raise ValueError(f"number must be at most 9; received {self.number}")


def complain(settings: Settings) -> None:
    raise FileNotFoundError(f"no file\n  of number {settings.number}")


def test_a_mistake_is_one_line_and_debug_shows_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    """A traceback of forty lines hides what the user has to mend; a developer needs it."""
    with pytest.raises(SystemExit) as ended:
        run_command(complain, Settings, "Complain.", arguments=["--number", "3"])
    assert ended.value.code == "error: no file of number 3 (--debug shows the traceback)"
    with pytest.raises(FileNotFoundError, match="of number 3"):
        run_command(complain, Settings, "Complain.", arguments=["--number", "3", "--debug"])


def test_a_setting_out_of_range_is_one_line_too() -> None:
    """The settings check themselves while the options are read, before the command begins."""
    with pytest.raises(SystemExit) as ended:
        run_command(complain, Settings, "Complain.", arguments=["--number", "10"])
    assert "number must be at most 9; received 10" in str(ended.value.code)


@dataclass(frozen=True)
class Group:
    numbers: tuple[int, ...] | None = None
    one: int = 0


@dataclass(frozen=True)
class Lists:
    names: tuple[str, ...] = ()
    group: Group = Group()


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["--names", "a", "--names", "b"], "--names"),
        (["--group.numbers", "1", "--names", "a", "--group.numbers=2"], "--group.numbers"),
    ],
)
def test_an_option_of_several_values_is_given_once(words: list[str], flag: str) -> None:
    """`lexforge index --delete a --delete b` would have deleted b alone."""
    with pytest.raises(SystemExit) as ended:
        run_command(lambda settings: None, Lists, "List.", arguments=words)
    assert f"error: {flag} is given 2 times; give all its values at once: {flag} A B" in str(ended.value.code)


@pytest.mark.parametrize("words", [["--names=~/runs"], ["--names", "~/my data"]])
def test_a_home_folder_that_the_shell_has_left_is_refused(words: list[str]) -> None:
    """A folder named `~` was made and filled, and whoever deletes it by name deletes their home folder."""
    with pytest.raises(SystemExit) as ended:
        run_command(lambda settings: None, Lists, "List.", arguments=words)
    assert "error: the shell has not replaced the ~ of --names" in str(ended.value.code)


def test_a_tilde_elsewhere_is_a_letter(capsys: pytest.CaptureFixture[str]) -> None:
    """A query, a delimiter, or a part of a name."""
    words = ["--names", "a", "~/b", "~", "--group.one=1"]
    run_command(print, Lists, "List.", arguments=words)
    assert "names=('a', '~/b', '~')" in capsys.readouterr().out


def test_an_option_of_one_value_may_be_given_again(capsys: pytest.CaptureFixture[str]) -> None:
    """The last one counts, as everywhere: a script may add to a command that it was given."""
    run_command(print, Lists, "List.", arguments=["--group.one", "1", "--names", "a", "--group.one", "2"])
    assert "one=2" in capsys.readouterr().out


def test_a_reader_that_has_seen_enough_is_no_mistake() -> None:
    """`lexforge search INDEX words | head -1` ends without a word about pipes."""
    code = (
        "from lexforge.common.command_line import one_line_errors\n"
        "with one_line_errors(debug=False):\n"
        "    for number in range(10**6):\n"
        "        print(number)\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141  # as if the signal had stopped it


def test_a_pipe_of_something_else_that_broke_is_told() -> None:
    """A server that hangs up ends no command without a word."""
    with pytest.raises(SystemExit) as ended, one_line_errors(debug=False):
        raise BrokenPipeError(32, "Broken pipe")
    assert str(ended.value.code).startswith("error: [Errno 32] Broken pipe")


def test_ctrl_c_ends_a_command_without_a_traceback() -> None:
    """It printed thirty lines of Python; a shell still sees the signal, and ends its loop too."""
    code = (
        "import signal\n"
        "from lexforge.common.command_line import one_line_errors\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has none\n"
        "with one_line_errors(debug=False):\n"
        "    signal.raise_signal(signal.SIGINT)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (-signal.SIGINT, "")


def test_an_error_after_a_caught_ctrl_c_keeps_its_traceback() -> None:
    """Whoever catches the interruption goes on, and what fails then must not end in silence."""
    code = (
        "from contextlib import suppress\n"
        "from lexforge.common.command_line import one_line_errors\n"
        "with suppress(KeyboardInterrupt), one_line_errors(debug=False):\n"
        "    raise KeyboardInterrupt\n"
        "raise KeyError('later')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.endswith("KeyError: 'later'\n")


def test_an_error_of_the_program_keeps_its_traceback() -> None:
    """A KeyError is no mistake of the user, and its one line would say nothing."""

    def fail(settings: Settings) -> None:
        raise KeyError("inner")

    with pytest.raises(KeyError):
        run_command(fail, Settings, "Fail.", arguments=[])


def test_letters_that_the_encoding_of_the_terminal_lacks_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run prints texts of its data after hours of training, and must not end there with an error."""
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="latin-1"))
    run_command(lambda settings: print("caf\xe9 \uac80\uc0c9"), Settings, "Show.", arguments=[])
    assert output.getvalue() == b"caf\xe9 \\uac80\\uc0c9\n"


def test_the_default_is_changed_by_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    """A preset on the command line gives the defaults of the other options."""
    run_command(lambda settings: print(settings.number), Settings, "Show.", default=Settings(5), arguments=[])
    assert capsys.readouterr().out == "5\n"


def test_help_shows_an_example_first_and_loads_nothing_slow() -> None:
    """The first command of a new user took nine seconds, and some told nothing but their options."""
    command = [sys.executable, "-c", HELPS, *map(str, RECIPES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for path, line in zip(RECIPES, done.stdout.splitlines(), strict=True):
        text, loaded = json.loads(line)
        assert loaded == [], path
        assert text.startswith(f"usage: {path.name} [-h]")  # a copy of a recipe is no command of `lexforge`
        example = text.index(f"{path.parent.name}/{path.name}", text.index("\n"))
        assert example < text.index("options ─"), path
        assert "--debug" in text, path


def test_a_command_without_its_data_ends_with_one_line(warm: WarmProcesses, tmp_path: Path) -> None:
    """What a user sees when a folder is misspelt."""
    words = ["--model", "m", "--data", tmp_path / "nowhere", "--output", tmp_path / "out"]
    done = warm.completed("-m", "lexforge", "encode", *words)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "nowhere" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
