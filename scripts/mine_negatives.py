"""Mine hard negatives for a split: `lexforge mine` in a checkout.

    python scripts/mine_negatives.py --data FOLDER --model MODEL --output mined.jsonl --max-seq-length 128
    python recipes/splade_v26.py --data FOLDER --model MODEL --negatives mined.jsonl

`--help` says what the options mean.
"""

from __future__ import annotations

from lexforge.commands import mine
from lexforge.common.command_line import run_command, script_help

Config, main = mine.Config, mine.main

if __name__ == "__main__":
    run_command(main, Config, script_help(mine.__doc__, "mine", "scripts/mine_negatives.py"))
