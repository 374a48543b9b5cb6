"""Processes that need not import torch: each is forked from one that has loaded the package.

python warm_processes.py

Reads one JSON object a line: `{"script": file, "arguments": [...], "ranks": n, "log": file, "errors": file,
"kill": {...}}`; forks one process, or so many ranks, each of which is the script with those arguments.
Answers their process ids in one line, and in the next how each of them ended (negative: by that signal).
When one rank fails, the others are killed, as a launcher does it. `kill` is empty or one of

- `{"operation": n}`: SIGKILL at the n-th operation on files of a checkpoint (open, rename, remove, ...);
- `{"bytes": n}`: SIGKILL while a checkpoint is written, once n bytes of it are on the disk;
- `{"seconds": t}`: SIGKILL that long after the process began.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOMS = ("data", "evaluation", "export", "losses", "models", "negatives", "report", "retrieval", "runs")
ROOMS += ("sparsity", "teachers", "training")


class WarmProcesses:
    """The process that has loaded the package, seen from a test."""

    def __init__(self, log: Path) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        environment |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self._line() == "ready"

    def start(
        self, script: Path, arguments: list[str], errors: Path | None = None, ranks: int = 1, **kill: Any
    ) -> list[int]:
        """Start a script, whose errors stand in its log unless they have a file; returns the process ids."""
        assert self.process.stdin is not None
        log = str(self.log)
        order = {"script": str(script), "arguments": arguments, "ranks": ranks, "kill": kill}
        order |= {"log": log, "errors": str(errors or log)}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self._line())

    def end(self) -> list[int]:
        """Wait for the processes; returns their exit codes, or minus the signals that killed them."""
        return json.loads(self._line())

    def run(self, script: Path, arguments: list[str], **others: Any) -> list[int]:
        """Start a script, and wait for its end."""
        self.start(script, arguments, **others)
        return self.end()

    def completed(self, script: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run a script as `subprocess.run` would."""
        errors = self.log.with_suffix(".errors")
        (code,) = self.run(script, list(map(str, arguments)), errors=errors)
        return subprocess.CompletedProcess(arguments, code, self.log.read_text(), errors.read_text())

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, "the process that loaded the package has ended"
        return line


def load() -> None:
    """The rooms load their modules when they are first used: here, once, and not in each process."""
    for room in ROOMS:
        loaded = importlib.import_module(f"lexforge.{room}")
        for name in loaded.__all__:
            getattr(loaded, name)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_operation(number: int) -> None:
    count = 0

    def count_operations(event: str, arguments: tuple) -> None:
        nonlocal count
        path = str(arguments[0]) if arguments else ""
        if event.startswith(("open", "os.", "shutil.")) and ("checkpoint-" in path or "unfinished" in path):
            count += 1
            if count == number:
                die()

    sys.addaudithook(count_operations)


def kill_at_bytes(run: Path, number: int) -> None:
    def watch() -> None:
        while True:
            try:
                files = [path for path in (run / "unfinished").rglob("*") if path.is_file()]
                if sum(path.stat().st_size for path in files) >= number:
                    die()
            except FileNotFoundError:  # renamed between the two looks
                pass
            time.sleep(1e-4)

    threading.Thread(target=watch, daemon=True).start()


def be(order: dict[str, Any], environment: dict[str, str]) -> None:
    """Be the script of an order."""
    os.environ |= environment
    log, errors = (os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in ("log", "errors"))
    os.dup2(log, 1)
    os.dup2(log if order["errors"] == order["log"] else errors, 2)
    sys.argv = [order["script"], *order["arguments"]]
    sys.orig_argv = [sys.executable, *sys.argv]  # as if Python had been started with them
    sys.path.insert(0, str(Path(order["script"]).parent))
    kill = order["kill"]
    if "operation" in kill:
        kill_at_operation(kill["operation"])
    elif "bytes" in kill:
        folder = order["arguments"][order["arguments"].index("--output-dir") + 1]
        kill_at_bytes(Path(folder), kill["bytes"])
    elif "seconds" in kill:
        threading.Timer(kill["seconds"], die).start()
    runpy.run_path(order["script"], run_name="__main__")


def environments(ranks: int) -> list[dict[str, str]]:
    """What a launcher tells each rank; nothing to a single process."""
    if ranks == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    shared["MASTER_PORT"] = str(port)
    return [{"RANK": str(rank), "LOCAL_RANK": str(rank), **shared} for rank in range(ranks)]


def fork(order: dict[str, Any], environment: dict[str, str]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        be(order, environment)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        if isinstance(end.code, str):  # as Python itself would end
            print(end.code, file=sys.stderr)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(children: list[int]) -> list[int]:
    """How each child ended; the first one that fails takes the others with it."""
    ends: dict[int, int] = {}
    while len(ends) < len(children):
        child, status = os.wait()
        ends[child] = os.waitstatus_to_exitcode(status)
        if ends[child]:
            for other in set(children) - set(ends):
                os.kill(other, signal.SIGKILL)
    return [ends[child] for child in children]


def main() -> None:
    load()
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        for name in ("log", "errors"):
            Path(order[name]).write_bytes(b"")
        children = [fork(order, environment) for environment in environments(order["ranks"])]
        print(json.dumps(children), flush=True)
        print(json.dumps(wait(children)), flush=True)


if __name__ == "__main__":
    main()
