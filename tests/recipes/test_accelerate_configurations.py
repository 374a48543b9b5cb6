"""The launch files that the recipes come with are what accelerate reads, and they launch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file

FILES = Path(__file__).resolve().parents[2] / "recipes" / "accelerate"
NAMES = ("one_gpu", "multi_gpu", "multi_node", "fsdp")
# Finds its process group as the recipes do, also without a GPU, and says where it stands.
SCRIPT = """
import sys
import torch
from accelerate import PartialState
state = PartialState(cpu=not torch.accelerator.is_available())
total = torch.ones(1, device=state.device)
if state.num_processes > 1:
    torch.distributed.all_reduce(total)
    torch.distributed.destroy_process_group()
sys.stdout.write(f"rank {state.process_index} of {state.num_processes}, sum {int(total)}\\n")  # in one piece
"""


@pytest.mark.parametrize("name", NAMES)
def test_accelerate_reads_the_file(name: str) -> None:
    """By accelerate's own loader, which refuses a key it does not know; every key arrives as written."""
    assert sorted(path.stem for path in FILES.glob("*.yaml")) == sorted(NAMES)
    file = FILES / f"{name}.yaml"
    written = yaml.safe_load(file.read_text(encoding="utf-8"))
    config = load_config_from_file(str(file))
    assert isinstance(config, ClusterConfig)
    read = config.to_dict()
    assert {key: read[key] for key in written} == written
    assert written["mixed_precision"] == "no", "the precision is a flag of the recipe"


def launch(name: str, script: Path, *options: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        str(FILES / f"{name}.yaml"),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, *options, str(script)], env=environment, **pipes)  # type: ignore[call-overload]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_accelerate_launches_the_file(name: str, tmp_path: Path) -> None:
    """One process; two of one machine; two machines, played by two launchers, of one process each."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    machines: list[tuple[str, ...]] = [()]
    if name == "multi_node":
        common = ("--num_processes", "2", "--main_process_port", port)
        machines = [(*common, "--machine_rank", str(rank)) for rank in range(2)]
    elif name in ("multi_gpu", "fsdp"):
        machines = [("--main_process_port", port)]
    processes = [launch(name, script, *options) for options in machines]
    finished = [process.communicate(timeout=200) for process in processes]
    assert all(process.returncode == 0 for process in processes), finished
    said = sorted(line for out, _ in finished for line in out.splitlines() if line.startswith("rank"))
    ranks = 1 if name == "one_gpu" else 2
    assert said == [f"rank {rank} of {ranks}, sum {ranks}" for rank in range(ranks)]
