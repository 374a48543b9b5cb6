"""Two ranks of which one is stopped for five seconds while the other waits for it: run by its test.

silent_ranks.py STOPPED, with the variables of `torch.distributed` for two ranks
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time

from lexforge.common.ranks import from_first_rank
from lexforge.runs import leave_processes, processes, start_processes


def main(stopped: str) -> None:
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    processes.SILENT_S = 2.0
    process = start_processes(seed=0)
    from_first_rank(lambda: None)
    print(f"rank {process.process_index} is process {os.getpid()}", flush=True)
    time.sleep(1)  # each rank has given its first signs, which tell its process
    if process.process_index == int(stopped):
        subprocess.Popen(["sh", "-c", f"sleep 5; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    process.wait_for_everyone()
    time.sleep(1)  # for the word that it answers again
    leave_processes()


if __name__ == "__main__":
    main(*sys.argv[1:])
