"""What a recipe reads and checks of its command line before it loads torch.

`--preset` and `--model` are read before the other options, whose defaults depend on these two.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from lexforge.common.command_line import program_name
from lexforge.models.backbone import LEXICAL
from lexforge.training.presets import PresetName

NegativesName = Literal["given", "none", "mined", "judged", "bm25"]


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


def check_negatives(negatives: NegativesName | Path, teacher_scores: Path | None) -> None:
    """Refuse a file of `--negatives` that does not exist, or that the scores of a teacher cannot follow.

    Args:
        negatives: The value of `--negatives`.
        teacher_scores: The value of `--teacher-scores`; None if it was not given.

    Raises:
        ValueError: If both name files: scores name documents by id, and the rows of a file have no ids.
        FileNotFoundError: If there is no such file of negatives.
    """
    if not isinstance(negatives, Path):
        return
    if teacher_scores is not None:
        raise ValueError(
            f"--teacher-scores names documents by id, and the rows of {negatives} have no ids; write "
            "the scores of each row into its column `label`"
        )
    if not negatives.is_file():
        raise FileNotFoundError(
            "--negatives must be given, none, mined, judged, bm25, or a file of `lexforge mine`; received "
            f"{str(negatives)!r}, and there is no such file"
        )


def check_wanted_terms(*, inference_free: bool = False, **wanted: float | None) -> None:
    """Refuse wanted numbers of active terms that no model can have.

    Args:
        inference_free: Whether the model has no query encoder.
        **wanted: Numbers by the name under which the user gave them; None wants nothing.

    Raises:
        ValueError: If a number is not finite or not above 0, or if an inference-free model is to have a
            number of `query_terms`.
    """
    for name, number in wanted.items():
        if number is not None and not 0 < number < math.inf:
            raise ValueError(f"{name} must be a finite number above 0; received {number}")
    if inference_free and wanted.get("query_terms") is not None:
        raise ValueError(
            "--query-terms needs a query encoder, and --inference-free has none: a query has one active term "
            f"per distinct token. Leave --query-terms out; received {wanted['query_terms']}"
        )
