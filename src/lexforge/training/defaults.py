"""What a recipe takes where the command line gives nothing: it depends on the kind of model.

What suits a model from scratch ruins a pretrained one, and the other way round. Each value that was chosen is
printed with its reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from lexforge.settings import LEXICAL
from lexforge.training.arguments import TrainingSettings

Config = TypeVar("Config", bound=Any)
LONGEST_TOKENS = 256
"""Tokens per text of a pretrained model at most, unless the command line gives more."""
SHORT_TOKENS = 128
"""Tokens per text of a model from scratch, unless its recipe names another number, and of a pretrained one
whose files name no length."""
_SHORTEST_TRAINING_TEXT = 96


@dataclass(frozen=True)
class KindDefaults:
    """How a recipe trains one kind of model, from scratch or pretrained.

    Args:
        learning_rate: Peak learning rate.
        steps: Number of optimizer steps.
        why_steps: The reason for that number, as the end of a sentence.
        warmup_fraction: Share of training, in [0, 1), during which the learning rate grows.
        tokens: Tokens per text of a model from scratch; the files of a pretrained one name its own.
        width: Hidden size of the encoder that the learning rate was chosen for. A wider one takes less, in
            proportion; None takes the rate as it is.

    Source: Yang et al., "Tensor Programs V" (arXiv 2203.03466): the rate of Adam in proportion to 1 / width.
    """

    learning_rate: float
    steps: int
    why_steps: str
    warmup_fraction: float = 0.1
    tokens: int = SHORT_TOKENS
    width: int | None = None


def with_defaults(
    config: Config, *, pretrained: KindDefaults, scratch: KindDefaults, say: Callable[[str], None]
) -> Config:
    """Choose learning rate, steps, warm-up and length by the kind of model, unless they are given.

    The length of a pretrained model is the one that it was saved with, because it knows no longer texts, and
    at most `LONGEST_TOKENS`, because time and memory grow with it.

    Args:
        config: The settings of the run, a dataclass with the fields `model` (`lexical`, or a pretrained model
            whose files must exist), `max_seq_length` and `train`. None stands for a value that was not given;
            the steps are given if `train.steps` or `train.epochs` is.
        pretrained: The values for a pretrained model.
        scratch: The values for the lexical backbone.
        say: Prints one line per value that was chosen: the value, and why.

    Returns:
        The settings with all four values.
    """
    new = config.model == LEXICAL
    kind = scratch if new else pretrained
    settings: TrainingSettings = config.train
    if settings.learning_rate is None:
        if new:
            rate, why = kind.learning_rate, "a model from scratch has everything to learn"
        else:
            rate, why = _pretrained_rate(config.model, kind)
        say(f"learning rate {rate:g}: {why} (--learning-rate changes it)")
        settings = replace(settings, learning_rate=rate)
    if settings.steps is None and settings.epochs is None:
        say(f"{kind.steps} steps: {kind.why_steps} (--steps or --epochs changes it)")
        settings = replace(settings, steps=kind.steps)
    if settings.warmup_fraction is None:
        why = (
            "the moments of AdamW start without a gradient to go by"
            if new
            else "the first steps of AdamW are its roughest, and they would change weights that fit already"
        )
        say(f"warm-up over {kind.warmup_fraction:.0%} of the steps: {why} (--warmup-fraction changes it)")
        settings = replace(settings, warmup_fraction=kind.warmup_fraction)
    tokens = config.max_seq_length
    if tokens is None:
        tokens, why = (kind.tokens, "time and memory grow with it") if new else _own_length(config.model)
        say(f"{tokens} tokens per text: {why} (--max-seq-length changes it)")
    chosen: Config = replace(config, train=settings, max_seq_length=tokens)
    return chosen


def check_training_length(tokens: int | None, longest: int | None) -> None:
    """Refuse a number of tokens per training text that holds no token or that the model cannot read.

    Args:
        tokens: The number, special tokens included; None stands for `longest`.
        longest: The model's `max_seq_length`; None for no limit.

    Raises:
        ValueError: If the number is out of range.
    """
    if tokens is not None and not (tokens >= 3 and (longest is None or tokens <= longest)):
        raise ValueError(
            "training_seq_length must lie between 3, a token between two special ones, and the model's "
            f"max_seq_length, {longest}; received {tokens}"
        )


def with_training_length(config: Config, *, say: Callable[[str], None]) -> Config:
    """Choose how many tokens of a training text are read, unless the number is given.

    The lexical backbone can search whole texts from its first step, because it starts as BM25, and it learns
    from their beginnings in much less time. A pretrained model trains on texts of the length that it
    searches.

    Args:
        config: The settings of the run, a dataclass with the fields `model`, `max_seq_length`, which is a
            number, and `training_seq_length`, for which None stands for a value that was not given.
        say: Prints one line if a value was chosen: the value, and why.

    Returns:
        The settings with that value; it stays None where whole texts are read.

    Raises:
        ValueError: If the number that was given is out of range.
    """
    check_training_length(config.training_seq_length, config.max_seq_length)
    tokens = max(_SHORTEST_TRAINING_TEXT, config.max_seq_length // 4)
    if config.training_seq_length is not None or config.model != LEXICAL or tokens >= config.max_seq_length:
        return config
    say(
        f"{tokens} tokens per text in training: a model from scratch searches whole texts from its first "
        "step and learns from shorter ones in less time (--training-seq-length changes it)"
    )
    chosen: Config = replace(config, training_seq_length=tokens)
    return chosen


def _pretrained_rate(model: str, kind: KindDefaults) -> tuple[float, str]:
    """Return the learning rate of a pretrained model, and why."""
    from lexforge.models.own_settings import own_width  # loads torch, which --help need not wait for

    width = own_width(model)
    if kind.width is None or width is None or width <= kind.width:
        return kind.learning_rate, "a pretrained model forgets what it knows at the rate of one from scratch"
    return (
        kind.learning_rate * kind.width / width,
        f"{kind.learning_rate:g} suits an encoder of width {kind.width}, and this one of width {width} takes "
        "less in proportion",
    )


def _own_length(model: str) -> tuple[int, str]:
    """Return the tokens per text of a pretrained model, and why."""
    from lexforge.models.own_settings import own_length  # loads torch, which --help need not wait for

    tokens = own_length(model)
    if tokens is None:
        return SHORT_TOKENS, "the files of the model name no length of its own"
    if tokens > LONGEST_TOKENS:
        return LONGEST_TOKENS, f"the model takes {tokens}, and time and memory grow with the length"
    return tokens, "the model was saved with it"
