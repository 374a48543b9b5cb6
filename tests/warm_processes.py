"""Processes that need not import torch: each is forked from one that has loaded the package.

python warm_processes.py FOLDER

A test of what a program does need not wait ten seconds for the imports of a new interpreter. A test of how a
program starts does: what it loads, what it takes from variables at its start, how a launcher starts it.

Two processes serve all workers of a run of the tests, each at a socket in FOLDER: `package` has loaded the
package, and `bare` what the package imports too, torch and sentence-transformers, but nothing of lexforge.
Both end when no worker is left.

Each reads one JSON object a line: `{"words": [...], "folder": folder, "environment": {...}, "forget": [...],
"ranks": n, "log": file, "errors": file, "kill": {...}}`; forks one process, or so many ranks, each of which
is what `python WORDS` would be in that folder: a script, `-m module` or `-c code` with its arguments. Only
the modules are loaded already, except those of the packages to forget. Answers the process ids in one line,
and in the next how each of them ended (negative: by that signal). When one rank fails, the others are killed,
as a launcher does it. `kill` is empty or one of

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
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn

SUBPACKAGES = ("data", "evaluation", "export", "losses", "models", "negatives", "report", "retrieval", "runs")
SUBPACKAGES += ("sparsity", "teachers", "training")
SETTINGS = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
SETTINGS |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
SERVERS = ("package", "bare")


class WarmProcesses:
    """The processes that have loaded the package or what it imports, seen from a test.

    Args:
        folder: Where their sockets are; the first worker starts them.
        log: A file for what the programs print.
    """

    def __init__(self, folder: Path, log: Path) -> None:
        import fcntl  # which Windows lacks, as it lacks forks

        self.log = log
        with open(folder / "lock", "w") as lock:  # let go when it is closed
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                package = connected(folder / "package")
            except OSError:  # no process has begun, or all have ended
                command = [sys.executable, __file__, str(folder)]
                subprocess.run(command, check=True, stdin=subprocess.DEVNULL, env=os.environ | SETTINGS)
                package = connected(folder / "package")
        self._servers = {"package": package, "bare": connected(folder / "bare")}
        self._asked = package
        for server in self._servers.values():
            self._asked = server
            assert self._line() == "ready"

    def close(self) -> None:
        """Let the processes end, unless another worker needs them."""
        for server in self._servers.values():
            server.close()

    def start(
        self,
        program: Path | str,
        arguments: Sequence[object],
        *,
        errors: Path | None = None,
        ranks: int = 1,
        folder: Path | None = None,
        forget: Sequence[str] = (),
        bare: bool = False,
        environment: Mapping[str, str] | None = None,
        **kill: Any,
    ) -> list[int]:
        """Start what `python PROGRAM ARGUMENTS` would start; returns the process ids.

        Its errors stand in the log unless they have a file. It works in the folder and with the variables of
        the test, unless it is given a folder or further variables. Packages to forget are not loaded when it
        begins; if it is bare, nothing of lexforge ever was.
        """
        log = str(self.log)
        variables = os.environ | SETTINGS | dict(environment or {})
        order = {"words": [str(word) for word in (program, *arguments)], "ranks": ranks, "kill": kill}
        order |= {"folder": str(folder or Path.cwd()), "environment": variables}
        order |= {"forget": list(forget), "log": log, "errors": str(errors or log)}
        self._asked = self._servers["bare" if bare else "package"]
        self._asked.write(json.dumps(order) + "\n")
        self._asked.flush()
        return json.loads(self._line())

    def end(self) -> list[int]:
        """Wait for the processes; returns their exit codes, or minus the signals that killed them."""
        return json.loads(self._line())

    def run(self, program: Path | str, arguments: Sequence[object], **others: Any) -> list[int]:
        """Start a program, and wait for its end."""
        self.start(program, arguments, **others)
        return self.end()

    def completed(
        self, program: Path | str, *arguments: object, **others: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as `subprocess.run` would, with what it prints and its errors apart."""
        errors = self.log.with_suffix(".errors")
        (code,) = self.run(program, arguments, errors=errors, **others)
        return subprocess.CompletedProcess(
            [program, *arguments], code, self.log.read_text(), errors.read_text()
        )

    def _line(self) -> str:
        line = self._asked.readline().strip()
        assert line, "the process that loaded the package has ended"
        return line


def connected(path: Path) -> IO[str]:
    """What is written to the socket at a path, and read from it.

    Raises:
        OSError: If nobody listens there.
    """
    with socket.socket(socket.AF_UNIX) as connection:  # the file keeps it open
        connection.connect(str(path))
        return connection.makefile("rw", encoding="utf-8")


def load() -> None:
    """The subpackages load their modules when they are first used: here, once, and not in each process."""
    for subpackage in SUBPACKAGES:
        loaded = importlib.import_module(f"lexforge.{subpackage}")
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
    """Be the program of an order."""
    os.environ.clear()
    os.environ |= order["environment"] | environment
    os.chdir(order["folder"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    log, errors = (os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in ("log", "errors"))
    os.dup2(log, 1)
    os.dup2(log if order["errors"] == order["log"] else errors, 2)
    for name in [name for name in sys.modules if name.split(".")[0] in order["forget"]]:
        del sys.modules[name]
    words, kill = order["words"], order["kill"]
    sys.orig_argv = [sys.executable, *words]  # as if Python had been started with them
    if "operation" in kill:
        kill_at_operation(kill["operation"])
    elif "bytes" in kill:
        kill_at_bytes(Path(words[words.index("--output-dir") + 1]), kill["bytes"])
    elif "seconds" in kill:
        threading.Timer(kill["seconds"], die).start()
    if words[0] in ("-c", "-m"):
        option, program, *arguments = words
        sys.path.insert(0, "")
        sys.argv = ["-c" if option == "-c" else program, *arguments]
        if option == "-m":
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.modules["__main__"] = main_module = ModuleType("__main__")
            exec(compile(program, "<string>", "exec"), main_module.__dict__)
    else:
        sys.path.insert(0, str(Path(words[0]).parent))
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


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
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
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


def answer(connection: IO[str]) -> None:
    """Do what a worker orders, until it closes its end."""
    print("ready", file=connection, flush=True)
    for line in connection:
        order = json.loads(line)
        for name in ("log", "errors"):
            Path(order[name]).write_bytes(b"")
        children = [fork(order, environment) for environment in environments(order["ranks"])]
        print(json.dumps(children), file=connection, flush=True)
        print(json.dumps(wait(children)), file=connection, flush=True)


def serve(listener: socket.socket, children: set[int]) -> NoReturn:
    """Fork a process for each worker that comes; end when these have ended, and the other children too."""
    gc.freeze()
    listener.settimeout(1)
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            pass
        else:
            child = os.fork()
            if not child:
                listener.close()
                answer(connection.makefile("rw", encoding="utf-8"))
                os._exit(0)
            connection.close()
            children.add(child)
        while children and (ended := os.waitpid(-1, os.WNOHANG)[0]):
            children.remove(ended)
        if not children:
            os._exit(0)  # without a word of the libraries that are loaded


def main(folder: Path) -> None:
    listeners = {name: socket.socket(socket.AF_UNIX) for name in SERVERS}
    for name, listener in listeners.items():
        (folder / name).unlink(missing_ok=True)  # of processes that have ended
        listener.bind(str(folder / name))
        listener.listen()
    if os.fork():  # who has started this waits for no more than the sockets
        os._exit(0)
    importlib.import_module("sentence_transformers.sparse_encoder")
    package = os.fork()
    name, other = ("bare", "package") if package else ("package", "bare")
    listeners[other].close()
    if not package:
        load()
    # The worker that has started this is waiting at both sockets, so neither is without one at first.
    serve(listeners[name], {package} if package else set())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
