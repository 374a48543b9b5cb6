"""Train an encoder by a recipe, which is the file that `lexforge recipe` prints."""

from __future__ import annotations

import os
import runpy
import shlex
import sys
from collections.abc import Sequence

from lexforge.commands.recipe import find_recipe
from lexforge.common.command_line import one_line_errors, run_by
from lexforge.common.shared_cores import share_cores

RECIPE = "splade_v26"  # what trains where no recipe is named
HELP = """lexforge train [RECIPE] [OPTIONS] runs a recipe ({names}); without a name it is {default}.
Without `accelerate launch -m` it trains on one device.
"""


def run_recipe_file(words: Sequence[str]) -> None:
    """Run a recipe as its file would run.

    Args:
        words: The words after `lexforge train`: the name of a recipe, unless it is the default, and its
            options.

    Raises:
        SystemExit: If there is no such recipe, or if the recipe ends with an error.
    """
    named = bool(words) and not words[0].startswith("-")
    name, options = (words[0], list(words[1:])) if named else (RECIPE, list(words))
    with one_line_errors(debug="--debug" in options):
        file = find_recipe(name, trains=True)
    command = f"lexforge train {name}" if named else "lexforge train"
    asks_for_help = bool({"-h", "--help"} & set(options))
    if asks_for_help:
        names = ", ".join(sorted(path.stem for path in file.parent.glob("*.py")))
        print(HELP.format(names=names, default=RECIPE))
    elif "WORLD_SIZE" not in os.environ:  # no launcher has started this process
        several = shlex.join(["accelerate", "launch", "-m", *command.split(), *options])
        print(f"This trains in one process. On several devices: {several}", file=sys.stderr)
    if not asks_for_help:
        share_cores()
    before = sys.argv
    sys.argv = [str(file), *options]  # what the file reads
    try:
        with run_by(command):
            runpy.run_path(str(file), run_name="__main__")
    finally:
        sys.argv = before
