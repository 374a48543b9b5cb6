"""The command that started a run, read from the words of its process and of its parent.

A run records it, so that anybody can repeat the run, and the ranks know the launcher with which they end.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

# What starts the ranks of a run, by the first words of the program that Python runs.
LAUNCHERS = (
    ["torchrun"],
    ["torch.distributed.run"],
    ["torch.distributed.launch"],
    ["accelerate", "launch"],
    ["accelerate-launch"],
    ["accelerate.commands.launch"],
    ["accelerate.commands.accelerate_cli", "launch"],
)
MASK = "***"
_NAME = re.compile(r"([\w.-]+)=")
_SECRET = re.compile(r"(?<![a-z])(token|(api)?key|secret|password)(?![a-z])", re.IGNORECASE)


def launch_command() -> list[str]:
    """The command that started this run: that of the launcher if there is one, or else that of the process.

    It is read from the words that started Python, not from `sys.argv`: those keep `-m lexforge`, and a
    command that runs a recipe changes `sys.argv`.

    Returns:
        The words of the command. The value of what is named token, key, secret or password is `***`, because
        the command is kept in files that are shown to others.
    """
    return _masked(launcher_command() or [sys.executable, *sys.orig_argv[1:]])


def _masked(words: list[str]) -> list[str]:
    """The words without the values of secrets, as in `--hub-token VALUE` and `--export=HF_TOKEN=VALUE`."""
    masked: list[str] = []
    for word in words:
        before = masked[-1] if masked else ""
        named = next((name for name in _NAME.finditer(word) if _SECRET.search(name[1])), None)
        option = before.startswith("-") and "=" not in before
        if option and _SECRET.search(before) and not word.startswith("-"):
            masked.append(MASK)
        else:
            masked.append(word if named is None else word[: named.end()] + MASK)
    return masked


def launcher_command() -> list[str]:
    """The command of the parent process if it is a launcher of this program; known on Linux only."""
    try:
        command = os.fsdecode(Path(f"/proc/{os.getppid()}/cmdline").read_bytes()).split("\0")[:-1]
    except OSError:
        return []
    own, parents = program_words(sys.orig_argv), program_words(command)
    names = [Path(word).name for word in parents[:1]] + parents[1:]
    known = any(names[: len(launcher)] == launcher for launcher in LAUNCHERS)
    return command if known and own and command[-len(own) :] == own else []


def program_words(words: list[str]) -> list[str]:
    """What a command of Python runs: a file, a module or code, and its arguments; options are left out."""
    place = 1
    while place < len(words) and words[place].startswith("-"):
        option = words[place]
        place += 2 if option in ("-W", "-X", "-m", "-c") else 1
        if option in ("-m", "-c"):
            return words[place - 1 :]
    return words[place:]


def launchers_environment() -> dict[str, str]:
    """The variables that the parent process was started with; known on Linux only."""
    words = os.fsdecode(Path(f"/proc/{os.getppid()}/environ").read_bytes()).split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)
