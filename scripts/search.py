"""Search an index from the shell: `lexforge search` in a checkout.

    python scripts/search.py --index INDEX --data FOLDER "how do vaccines work"

`--help` says what the options mean.
"""

from __future__ import annotations

from lexforge.commands import search
from lexforge.common.command_line import run_command, script_help

Config, main = search.Config, search.main

if __name__ == "__main__":
    run_command(main, Config, script_help(search.__doc__, "search", "scripts/search.py"))
