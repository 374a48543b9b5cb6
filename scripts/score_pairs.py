"""Score listed (query, document) pairs with a teacher: `lexforge score` in a checkout.

    python scripts/score_pairs.py --teacher MODEL --rows mined.jsonl --output labelled.jsonl

`--help` says what the options mean.
"""

from __future__ import annotations

from lexforge.commands import score
from lexforge.common.command_line import run_command, script_help

Config, main = score.Config, score.main

if __name__ == "__main__":
    run_command(main, Config, script_help(score.__doc__, "score", "scripts/score_pairs.py"))
