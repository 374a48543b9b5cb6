"""Evaluate an encoder on a retrieval set: `lexforge evaluate` in a checkout.

    python scripts/evaluate_retrieval.py --model MODEL --data FOLDER --max-seq-length 128 --run run.trec

`--help` says what the options mean.
"""

from __future__ import annotations

from lexforge.commands import evaluate
from lexforge.common.command_line import run_command, script_help

Config, main = evaluate.Config, evaluate.main

if __name__ == "__main__":
    run_command(main, Config, script_help(evaluate.__doc__, "evaluate", "scripts/evaluate_retrieval.py"))
