"""The command line of a recipe or a script: its help, its options, and one line for a user's mistake."""

from __future__ import annotations

import argparse
import inspect
import io
import logging
import os
import re
import select
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass, make_dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from lexforge.common.types import DataError

Config = TypeVar("Config")
# What a user can mend: wrong data or options, a file that is missing or cannot be written, a missing package.
MISTAKES = (ValueError, OSError, ImportError)
_OUTPUT = 1  # the file descriptor of the standard output
_RUN_BY: ContextVar[str | None] = ContextVar("_RUN_BY", default=None)
_CONTROL = {number: f"\\x{number:02x}" for number in (*range(0x20), *range(0x7F, 0xA0))}
# They show the letters behind them, and those of the rest of the line, in another order.
_CONTROL |= {number: f"\\u{number:04x}" for number in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def run_command(
    main: Callable[[Config], None],
    config_class: type[Config],
    description: str | None,
    *,
    default: Config | None = None,
    arguments: Sequence[str] | None = None,
) -> None:
    """Read the options of a command, run it, and end the process with one line where the user must act.

    `--debug` is an option of every command: it lets an error through with its traceback. It is no field of
    the settings, so a run directory does not record it.

    Args:
        main: The command, which takes its settings.
        config_class: The dataclass of the settings; each field becomes an option.
        description: The docstring of the module, which `--help` prints above the options.
        default: The settings that the options change; None takes the defaults of the dataclass.
        arguments: The words of the command line; None reads those of this process.

    Raises:
        SystemExit: If the options are wrong, or if the command raised one of `MISTAKES`.
    """
    import tyro

    settings = Annotated[config_class, tyro.conf.arg(name="")]  # type: ignore[valid-type]
    debug = Annotated[bool, tyro.conf.arg(help="Whether an error is shown with its traceback.")]
    options: list[Any] = [("settings", settings), ("debug", debug, False)]
    if default is not None:
        options[0] = ("settings", settings, default)
    options_class = make_dataclass("Options", options, frozen=True)
    words = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):  # a text may have letters that the terminal's encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    with one_line_errors(debug="--debug" in words):
        _refuse_repeated_lists(words, config_class)
        _refuse_unexpanded_home(words)
        # The settings check their own range while they are read.
        help_text = _help_text(description)
        given: Any = tyro.cli(options_class, prog=_program_name(), description=help_text, args=words)
        from lexforge.common.progress import bars_on_a_terminal_only

        with _log_on_standard_error(), bars_on_a_terminal_only():
            main(given.settings)


def run_recipe(
    main: Callable[[Config], None],
    defaults: Callable[..., Config],
    description: str | None,
    *,
    resolve: Callable[[Config], Config],
    arguments: Sequence[str] | None = None,
) -> None:
    """Read the options of a recipe and run it; the defaults of some options follow from others.

    Args:
        main: The recipe, which takes its settings.
        defaults: Returns the settings that the options change: their dataclass, or a function of the values
            of `--model` and `--preset`, where these are given.
        description: The docstring of the recipe.
        resolve: Fills in what follows from the model. `main` calls it, because it reads files for seconds;
            here only the settings that `--help` shows go through it.
        arguments: As for `run_command`.

    Raises:
        SystemExit: As for `run_command`.
    """
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(_program_name(), add_help=False, allow_abbrev=False)
    for name in ("model", "preset"):
        if name in inspect.signature(defaults).parameters:
            parser.add_argument(f"--{name}", default=argparse.SUPPRESS)
    default: Any
    try:
        default = defaults(**vars(parser.parse_known_args(words)[0]))
    except ValueError as error:  # a preset that does not exist
        parser.error(f"argument {error}")
    if {"-h", "--help"} & set(words):
        try:
            default = resolve(default)
        except OSError:  # no model is there, and what does not follow from it is shown
            unknown: Any = resolve(replace(default, model=None))
            default = replace(unknown, model=default.model)
    run_command(main, type(default), description, default=default, arguments=words)


@contextmanager
def run_by(command: str) -> Iterator[None]:
    """A block in which a command runs, by whose words its help and its errors name it.

    Args:
        command: The words of the command, such as `lexforge train`.
    """
    before = _RUN_BY.set(command)
    try:
        yield
    finally:
        _RUN_BY.reset(before)


def refuse_unread(cfg: Any, names: Sequence[str], reason: str) -> None:
    """Refuse options that were given and that nothing would read.

    Args:
        cfg: The settings, a dataclass in which every one of these options has a default.
        names: The fields of the options, or of groups of options.
        reason: Why nothing reads them.

    Raises:
        ValueError: If one of them is not its default.
    """
    defaults = {field.name: field.default for field in fields(cfg)}
    given: dict[str, Any] = {}
    for name in names:
        given |= _given(name, getattr(cfg, name), defaults[name])
    if given:
        words = {name: value if isinstance(value, tuple) else (value,) for name, value in given.items()}
        unread = [" ".join([f"--{name.replace('_', '-')}", *map(str, each)]) for name, each in words.items()]
        raise ValueError(f"{' and '.join(unread)} would be ignored: {reason}")


def _given(name: str, value: Any, default: Any) -> dict[str, Any]:
    """Return an option by its name if it is not its default; of a group of options, those that are not."""
    if not is_dataclass(value):
        return {} if value == default else {name: value}
    given: dict[str, Any] = {}
    for option in fields(value):
        given |= _given(option.name, getattr(value, option.name), getattr(default, option.name))
    return given


def _program_name() -> str:
    """Return the words before the options: the command that runs this file, or else the name of the file."""
    return _RUN_BY.get() or Path(sys.argv[0]).name


@contextmanager
def one_line_errors(*, debug: bool) -> Iterator[None]:
    """A block in which one of `MISTAKES` ends the process with one line, or a list of what is wrong in data.

    Ctrl-C ends it without a line: whoever presses it knows why the process has ended.

    Args:
        debug: Whether such an error passes on with its traceback instead.

    Raises:
        KeyboardInterrupt: After Ctrl-C.
        SystemExit: If the block raised one of `MISTAKES` and `debug` is not set, or if nobody reads what it
            prints any more, as after `| head`.
    """
    try:
        yield
        sys.stdout.flush()  # here, because Python prints a warning where it fails at the end
    except MISTAKES as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads_the_output():
            sys.exit(141)  # as if the signal SIGPIPE had stopped it
        if debug:
            raise
        # Errors of data list what is wrong, one line each; those of libraries are cut into lines anyhow.
        lines = str(error).splitlines() if isinstance(error, DataError) else [" ".join(str(error).split())]
        shown = [printable(line) for line in [*lines, *getattr(error, "__notes__", ())]]
        message = "\n".join(shown) or type(error).__name__
        sys.exit(f"error: {message} (--debug shows the traceback)")
    except KeyboardInterrupt:
        if not debug:
            sys.excepthook = _told_unless_interrupted
        raise  # so that Python ends by the signal itself, as a shell expects


def _told_unless_interrupted(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print the traceback of an error, as `sys.excepthook` does, but not that of Ctrl-C."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


def _nobody_reads_the_output() -> bool:
    """Return whether the standard output is a broken pipe, and then let what is left to print go nowhere."""
    if not hasattr(select, "poll"):  # Windows, where a broken pipe of the output is another error
        return False
    poll = select.poll()
    poll.register(_OUTPUT, select.POLLERR)
    broken = any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    if broken:
        os.dup2(os.open(os.devnull, os.O_WRONLY), _OUTPUT)
    return broken


def printable(text: str) -> str:
    r"""Return a line with its control characters as escapes, because a terminal obeys those of a corpus.

    Args:
        text: Any text of one line; an escape character in it can hide lines, rename the window or worse.

    Returns:
        The line, with `\x1b` for the escape character, and the same for each other character of Unicode's
        category Cc and for what changes the direction of the text around it (U+202A to U+202E and U+2066 to
        U+2069).
    """
    return text.translate(_CONTROL)


def _refuse_repeated_lists(words: Sequence[str], config_class: type) -> None:
    """Refuse an option of several values that is given twice: its last values alone would count."""
    flags = Counter(word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--"))
    for name in _list_names(config_class):
        for flag, count in flags.items():
            if count > 1 and flag.removeprefix("--").rpartition(".")[2] == name.replace("_", "-"):
                raise ValueError(f"{flag} is given {count} times; give all its values at once: {flag} A B")


def _refuse_unexpanded_home(words: Sequence[str]) -> None:
    """Refuse a `~` that the shell has not replaced: a folder of that name would be made."""
    for before, word in pairwise(["", *words]):
        flag, equals, value = word.partition("=") if word.startswith("--") else (before, "", word)
        if re.fullmatch(r"--[\w.-]+", flag) and value.startswith("~/"):
            raise ValueError(
                f"the shell has not replaced the ~ of {flag}{equals or ' '}{value}; write $HOME, or put "
                "the ~ behind a space and outside of quotation marks"
            )


def _list_names(config_class: type) -> Iterator[str]:
    """Yield the names of the settings that take several values, also of those in groups."""
    for name, hint in get_type_hints(config_class).items():
        if isinstance(hint, type) and is_dataclass(hint):
            yield from _list_names(hint)
        elif tuple in (get_origin(hint), *map(get_origin, get_args(hint))):
            yield name


@contextmanager
def _log_on_standard_error() -> Iterator[None]:
    """A block in which the package says what long work does, and how far it has come."""
    log, handler = logging.getLogger("lexforge"), logging.StreamHandler(sys.stderr)
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:  # a process that calls several commands, such as a test, would write each line several times
        log.removeHandler(handler)
        log.setLevel(level)


def _help_text(docstring: str | None) -> str | None:
    """Return a docstring with each command on one line; a line that ended in a backslash left wide gaps.

    Where a command runs the file, the examples start the command: `accelerate launch` and `python` take both.
    """
    if docstring is None:
        return None
    if command := _RUN_BY.get():
        docstring = docstring.replace(f"recipes/{Path(sys.argv[0]).name}", f"-m {command}")
    return re.sub(r"(?<=\S) {2,}(?=\S)", " ", docstring)
