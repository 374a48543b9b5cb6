"""Make an index of a corpus that `scripts/encode_corpus.py` has encoded: `lexforge index` in a checkout.

    python scripts/build_index.py --vectors VECTORS --index inverted --output INDEX

`--help` says what the options mean.
"""

from __future__ import annotations

from lexforge.commands import index
from lexforge.common.command_line import run_command, script_help

Config, main = index.Config, index.main

if __name__ == "__main__":
    run_command(main, Config, script_help(index.__doc__, "index", "scripts/build_index.py"))
