"""Write the page of a run: `lexforge report` in a checkout.

    python scripts/report.py runs/splade_v26
    python scripts/report.py runs/first runs/second --output compared.html

`--help` says what the options mean.
"""

from __future__ import annotations

from lexforge.commands import report
from lexforge.common.command_line import run_command, script_help

Config, main = report.Config, report.main

if __name__ == "__main__":
    run_command(main, Config, script_help(report.__doc__, "report", "scripts/report.py"))
