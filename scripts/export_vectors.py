"""Write encoded vectors as files for another search engine: `lexforge export vectors` in a checkout.

    python scripts/export_vectors.py --vectors VECTORS --target opensearch --output OUT --queries FOLDER

`--help` says what the options mean.
"""

from __future__ import annotations

from lexforge.commands import export_vectors
from lexforge.common.command_line import run_command, script_help

Config, main = export_vectors.Config, export_vectors.main

if __name__ == "__main__":
    run_command(
        main, Config, script_help(export_vectors.__doc__, "export vectors", "scripts/export_vectors.py")
    )
