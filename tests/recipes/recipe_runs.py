"""Runs of a recipe for its tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SERVER = Path(__file__).with_name("recipe_server.py")


class Server:
    """Forked runs of a recipe, which need not import torch each time; see recipe_server.py."""

    def __init__(self, recipe: Path, log: Path) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        environment |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER), str(recipe)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self._line() == "ready"

    def start(self, arguments: list[str], errors: str | None = None, **kill: Any) -> int:
        """Start a run, whose errors stand in its log unless they have a file; returns its process id."""
        assert self.process.stdin is not None
        log = str(self.log)
        order = {"arguments": arguments, "log": log, "errors": errors or log, "kill": kill}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self._line())

    def end(self) -> int:
        """Wait for the run; returns its exit code, or minus the signal that killed it."""
        return int(self._line())

    def run(self, arguments: list[str], errors: str | None = None, **kill: Any) -> int:
        self.start(arguments, errors, **kill)
        return self.end()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, "the server has ended"
        return line

    def completed(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run the recipe as `subprocess.run` would."""
        errors = self.log.with_suffix(".errors")
        code = self.run(list(map(str, arguments)), errors=str(errors))
        return subprocess.CompletedProcess(arguments, code, self.log.read_text(), errors.read_text())
