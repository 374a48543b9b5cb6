"""How a run was launched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys
from lexforge.runs.launch import launch_command
print(json.dumps(launch_command()))
"""
# Starts what it is given, as launchers do, and waits.
LAUNCHER = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]], check=True)"


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def said(*command: str) -> list[str]:
    found: list[str] = json.loads(subprocess.check_output(command, text=True))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process the command of its parent")
def test_the_command_of_a_run_is_its_launchers(script: str) -> None:
    """With all its options: how many ranks, which configuration file."""
    command = [sys.executable, "-c", LAUNCHER, script, "--steps", "3"]
    assert said(*command) == command


def test_without_a_launcher_it_is_the_scripts(script: str) -> None:
    """A shell, a test runner or another program that started it is no launcher."""
    assert said(sys.executable, script, "--steps", "3") == [sys.executable, script, "--steps", "3"]
    shell = f"{sys.executable} {script} --steps 3; true"
    assert said("sh", "-c", shell) == [sys.executable, script, "--steps", "3"]
