"""A callback that warns when the activations collapse."""

from __future__ import annotations

import logging
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.report.symptoms import SYMPTOMS, argument_of

logger = logging.getLogger(__name__)


class CollapseCallback(TrainerCallback):
    """Warn once when queries or documents stay empty or dense, and say what to change.

    A model whose activations are all zero has no gradient by which it could recover. A model with most terms
    active is not sparse, and its index would be too large.

    Args:
        vocabulary_size: Number of terms, V.
        patience: Number of consecutive lines of the log after which the warning comes.
        dense_fraction: Share of V, in (0, 1]; a text with more active terms than this share is dense.
        terms_are_wanted: Whether a wanted number of terms per document sets the weight of FLOPS, as for
            `Symptom.advice_text`.

    Raises:
        ValueError: If a number is out of range.

    Source: the advice is that of `lexforge.report.symptoms`.
    """

    def __init__(
        self,
        vocabulary_size: int,
        *,
        patience: int = 5,
        dense_fraction: float = 0.5,
        terms_are_wanted: bool = False,
    ) -> None:
        if not vocabulary_size > 0 or not patience > 0 or not 0 < dense_fraction <= 1:
            raise ValueError(
                "vocabulary_size and patience must be above 0 and dense_fraction in (0, 1]; received "
                f"{vocabulary_size}, {patience} and {dense_fraction}"
            )
        self.vocabulary_size = vocabulary_size
        self.patience = patience
        self.dense_fraction = dense_fraction
        self.terms_are_wanted = terms_are_wanted
        self._lines: dict[tuple[str, str], int] = {}  # (column, state) -> consecutive lines

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Compare the mean number of active terms per text with both limits."""
        for column in ("query", "document"):
            active = (logs or {}).get(f"terms/{column}")
            if active is None:
                continue
            states = {"empty": active < 1, "dense": active > self.dense_fraction * self.vocabulary_size}
            for name, holds in states.items():
                self._lines[column, name] = self._lines.get((column, name), 0) + 1 if holds else 0
                if self._lines[column, name] == self.patience and state.is_world_process_zero:
                    logger.warning(
                        "step %d: for %d lines of the log a %s has had %.1f of %d terms active: %s",
                        state.global_step,
                        self.patience,
                        column,
                        active,
                        self.vocabulary_size,
                        SYMPTOMS[name].advice_text(argument_of, terms_are_wanted=self.terms_are_wanted),
                    )
