"""Write an encoder for another runtime: `lexforge export model` in a checkout.

    python scripts/export_model.py --model MODEL --target onnx --output OUT

`--help` says what the options mean.
"""

from __future__ import annotations

from lexforge.commands import export_model
from lexforge.common.command_line import run_command, script_help

Config, main = export_model.Config, export_model.main

if __name__ == "__main__":
    run_command(main, Config, script_help(export_model.__doc__, "export model", "scripts/export_model.py"))
