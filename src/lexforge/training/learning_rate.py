"""The learning rate of a recipe that was given none: what suits a pretrained model ruins no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lexforge.models.backbone import LEXICAL
from lexforge.training.arguments import TrainingSettings


def with_learning_rate(
    settings: TrainingSettings,
    model: str,
    *,
    pretrained: float,
    scratch: float,
    say: Callable[[str], None],
) -> TrainingSettings:
    """Take the learning rate that suits the kind of model, unless the settings have one.

    A model from scratch needs a rate at which a pretrained one forgets what it knows: it ranks worse after
    training than before.

    Args:
        settings: The settings of the run.
        model: What the option `--model` names: `lexical`, or a pretrained model.
        pretrained: Peak learning rate for a pretrained model.
        scratch: Peak learning rate for the lexical backbone.
        say: Prints one line: the rate and why it was chosen.

    Returns:
        The settings with a learning rate.
    """
    if settings.learning_rate is not None:
        return settings
    rate, kind = (scratch, "a model from scratch") if model == LEXICAL else (pretrained, "a pretrained model")
    say(f"learning rate {rate:g}, the default for {kind} (--learning-rate changes it)")
    return replace(settings, learning_rate=rate)
