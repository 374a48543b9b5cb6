"""Runs of a recipe, each in a process of its own that can be killed, without importing torch every time.

python recipe_server.py RECIPE

Reads one JSON object a line: `{"arguments": [...], "log": file, "errors": file, "kill": {...}}`; forks; the
child is the recipe with those arguments. Answers the child's process id on one line, and on the next how it
ended (negative: by that signal). `kill` is empty or one of

- `{"operation": n}`: SIGKILL at the n-th operation on files of a checkpoint (open, rename, remove, ...);
- `{"bytes": n}`: SIGKILL while a checkpoint is written, once n bytes of it are on the disk;
- `{"seconds": t}`: SIGKILL that long after the process began.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any


def load(recipe: Path) -> None:
    spec = importlib.util.spec_from_file_location(recipe.stem, recipe)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[recipe.stem] = module
    spec.loader.exec_module(module)
    # The rooms load their modules when they are first used: here, once, and not in each run.
    for room in ("data", "evaluation", "losses", "models", "retrieval", "runs", "training"):
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


def run(path: str, order: dict[str, Any]) -> None:
    log, errors = (os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for name in ("log", "errors"))
    os.dup2(log, 1)
    os.dup2(log if order["errors"] == order["log"] else errors, 2)
    sys.argv = [path, *order["arguments"]]
    sys.orig_argv = [sys.executable, *sys.argv]  # as if Python had been started with them
    kill = order["kill"]
    if "operation" in kill:
        kill_at_operation(kill["operation"])
    elif "bytes" in kill:
        folder = order["arguments"][order["arguments"].index("--output-dir") + 1]
        kill_at_bytes(Path(folder), kill["bytes"])
    elif "seconds" in kill:
        threading.Timer(kill["seconds"], die).start()
    runpy.run_path(path, run_name="__main__")


def main(path: str) -> None:
    load(Path(path))
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run(path, json.loads(line))
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
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
