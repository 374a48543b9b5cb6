"""Two ranks that claim one run directory: run by its test.

torchrun --nproc-per-node 2 claiming_ranks.py FOLDER OUTPUT
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lexforge.runs import check_run_directory, claim_run_directory, leave_processes, start_processes


@dataclass(frozen=True)
class Settings:
    resume: bool = False


def main(folder: str, output: str) -> None:
    process = start_processes(0)
    said = []
    for step in (check_run_directory, partial(claim_run_directory, data={})):
        try:
            step(folder, Settings())
        except BlockingIOError as error:
            said.append(str(error))
    files = sorted(path.name for path in Path(folder).iterdir())
    Path(output, str(process.process_index)).write_text("\n".join([*said, *files]))


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave_processes()
