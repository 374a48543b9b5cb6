"""Read `--preset` and `--model` before the other options of a recipe, whose defaults depend on these two."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import get_args

from lexforge.common.command_line import program_name
from lexforge.models.backbone import LEXICAL
from lexforge.training.presets import PresetName


def preset_on_command_line(arguments: Sequence[str] | None = None) -> PresetName:
    """Read `--preset` alone: its numbers are the defaults of the options `--loss.*`.

    Args:
        arguments: The words of the command line; None reads those of this process.

    Returns:
        The name of the preset; where the command line names none, `lexforge` for a pretrained model and
        `lexforge-scratch` for the lexical backbone. The process ends with a message if there is no such
        preset.
    """
    parser = argparse.ArgumentParser(program_name(), add_help=False, allow_abbrev=False)
    parser.add_argument("--preset", choices=get_args(PresetName))
    known, _ = parser.parse_known_args(arguments)
    own: PresetName = "lexforge-scratch" if scratch_on_command_line(arguments) else "lexforge"
    preset: PresetName = known.preset or own
    return preset


def scratch_on_command_line(arguments: Sequence[str] | None = None) -> bool:
    """Return whether `--model` names the lexical backbone, which is its default, or a pretrained model.

    Args:
        arguments: The words of the command line; None reads those of this process.
    """
    parser = argparse.ArgumentParser(program_name(), add_help=False, allow_abbrev=False)
    parser.add_argument("--model", default=LEXICAL)
    return bool(parser.parse_known_args(arguments)[0].model == LEXICAL)
