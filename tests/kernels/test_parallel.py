"""The threads of compiled loops."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lexforge
from lexforge.kernels import parallel


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [({"OMP_NUM_THREADS": "1"}, 1), ({"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "2"}, 2)],
)
def test_loops_take_no_more_cores_than_openmp_may(chosen: dict[str, str], expected: int) -> None:
    """numba took all cores, and waited for them in a busy loop, where a user had left one to each process."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("NUM_THREADS")}
    code = (
        "import threading; from lexforge.kernels import parallel; found = [parallel.threads()]\n"
        "thread = threading.Thread(target=lambda: found.append(parallel.threads()))\n"
        "thread.start(); thread.join(); print(*found)"
    )
    environment |= {"NUMBA_NUM_THREADS": "2"} if "NUMBA_NUM_THREADS" in chosen else {}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment | chosen, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(expected)] * 2


@pytest.mark.parametrize("layer", ["omp", "workqueue"])
def test_torch_keeps_its_threads_as_numba_starts_its_own(layer: str) -> None:
    """numba tells OpenMP how many threads it has, and torch took as many: two where one was asked for."""
    code = (
        "import torch; torch.set_num_threads(1); torch.get_num_threads()\n"
        "from lexforge.kernels import parallel\n"
        "with parallel.at_most(2): print(parallel.threads(), torch.get_num_threads())\n"
        "parallel.limit_threads(1); print(parallel.threads(), torch.get_num_threads())"
    )
    environment = {name: value for name, value in os.environ.items() if not name.endswith("NUM_THREADS")}
    environment |= {"NUMBA_NUM_THREADS": "2", "NUMBA_THREADING_LAYER": layer}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["2", "1", "1", "1"]


def test_a_loop_is_compiled_anew_where_what_it_calls_has_changed(tmp_path: Path) -> None:
    """numba watches the file of a loop alone, so after an update a loop went on with an old callee."""
    shutil.copytree(
        Path(lexforge.__file__).parent, tmp_path / "lexforge", ignore=shutil.ignore_patterns("__pycache__")
    )
    kernels = tmp_path / "lexforge" / "kernels"
    (kernels / "loops.py").write_text(
        "from lexforge.kernels.callee import number\nfrom lexforge.kernels.parallel import parallel\n"
        "@parallel\ndef loop():\n    return number()\n"
    )
    code = (
        "from lexforge.kernels.loops import loop\n"
        "print(loop(), sum(loop.__wrapped__.stats.cache_hits.values()))"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    environment.pop("NUMBA_CACHE_DIR", None)
    found = []
    for number in (1, 1, 2):
        (kernels / "callee.py").write_text(
            f"from lexforge.kernels.parallel import inner\n@inner\ndef number():\n    return {number}\n"
        )
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(done.stdout.split())
    assert found == [["1", "0"], ["1", "1"], ["2", "0"]]  # a version that is known is read, and not compiled


def test_a_cache_that_nobody_may_write_is_one_clear_error(tmp_path: Path, monkeypatch) -> None:
    """An image whose cache another user had filled ended each command with a traceback of numba."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "file" / "loops"))
    place: dict[str, Any] = {}  # a function of a file beside which nobody can write either
    exec(compile("def loop(): return 0", "/proc/self/status", "exec"), place)
    with pytest.raises(PermissionError, match=rf"{tmp_path}/file/loops/loops-\w+, .* NUMBA_CACHE_DIR names"):
        parallel.inner(place["loop"])
