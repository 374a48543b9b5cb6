"""A callback that warns when the activations collapse."""

from __future__ import annotations

import logging
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.common.types import TEXT_KINDS
from lexforge.report.symptoms import SYMPTOMS, argument_of

PATIENCE = 5  # consecutive lines of the log after which the warning comes
DENSE = 0.5  # share of the vocabulary; a text with more active terms is dense
logger = logging.getLogger(__name__)


class CollapseCallback(TrainerCallback):
    """Warn once when queries or documents stay empty or dense, and say what to change.

    A model whose activations are all zero has no gradient by which it could recover. A model with most terms
    active is not sparse, and its index would be too large. The limits are not those of
    `lexforge.report.symptoms`, which judge the trained model: while training goes on, a warning is worth
    these two states alone.

    Args:
        vocabulary_size: Number of terms, V.
        terms_are_wanted: Whether a wanted number of terms per document sets the weight of FLOPS, as for
            `Symptom.advice_text`.

    Source: the advice is that of `lexforge.report.symptoms`.
    """

    def __init__(self, vocabulary_size: int, *, terms_are_wanted: bool = False) -> None:
        self.vocabulary_size = vocabulary_size
        self.terms_are_wanted = terms_are_wanted
        self._lines: dict[tuple[str, str], int] = {}  # (kind, symptom) -> consecutive lines

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Compare the mean number of active terms per text with both limits."""
        for kind in TEXT_KINDS:
            active = (logs or {}).get(f"terms/{kind}")
            if active is None:
                continue
            symptoms = {"empty": active < 1, "dense": active > DENSE * self.vocabulary_size}
            for name, holds in symptoms.items():
                self._lines[kind, name] = self._lines.get((kind, name), 0) + 1 if holds else 0
                if self._lines[kind, name] == PATIENCE and state.is_world_process_zero:
                    logger.warning(
                        "step %d: for %d lines of the log a %s has had %.1f of %d terms active: %s",
                        state.global_step,
                        PATIENCE,
                        kind,
                        active,
                        self.vocabulary_size,
                        SYMPTOMS[name].advice_text(argument_of, terms_are_wanted=self.terms_are_wanted),
                    )
