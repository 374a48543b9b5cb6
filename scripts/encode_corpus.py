"""Encode a corpus to blocks of vectors on disk: `lexforge encode` in a checkout.

    accelerate launch scripts/encode_corpus.py --model MODEL --data FOLDER --output vectors

`--help` says what the options mean.
"""

from __future__ import annotations

from lexforge.commands import encode
from lexforge.common.command_line import run_command, script_help

Config, main = encode.Config, encode.main

if __name__ == "__main__":
    run_command(main, Config, script_help(encode.__doc__, "encode", "scripts/encode_corpus.py"))
