"""The controller that brings the mean number of active terms per text to a wanted number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.common.types import TextKind
from lexforge.losses import NeuralSparseLoss

START = 0.1  # share of training after which the terms are first counted
BETWEEN = 0.025  # share of training between two counts
TREND = 4  # counts over which the trend is taken
AHEAD = 0.15  # share of training by which the number is foreseen
GAIN = 30.0  # how far the logarithm of a weight moves in the whole training, while the error is 1
PROPORTIONAL = 2.0  # what the error adds to the logarithm at once
BOUND = math.log(1e6)  # a weight stays within this factor of the given one
FEWEST = 0.01  # terms; empty texts count as having so many
# Buffers of the loss: the integral and the error, [2], and the last counts, [TREND + 1, 2].
INTEGRAL, ERROR, COUNTS = "active_terms_integral", "active_terms_error", "active_terms_counts"
SIDES: tuple[TextKind, ...] = ("query", "document")


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


class ActiveTermsController(TrainerCallback):
    """Multiply the sparsity weights so that texts come to have a wanted mean number of active terms.

    Queries and documents are controlled apart if both have a wanted number. If one side alone has a number,
    its factor multiplies the terms of both sides, as one weight of FLOPS that is set by hand would.

    From `START` of training on, and again after each `BETWEEN` of it, n is counted: the mean number of active
    terms per text that the model would have if training ended there. Its trend says what it will be after a
    further `AHEAD` of training:

        e = clip(log(n / wanted) + AHEAD / BETWEEN * log(n / n_before) / t, -1, 1),

    where n_before was counted t counts ago (`TREND`, or the first count). The weight is then multiplied by

        exp(clip(I + PROPORTIONAL * e, -BOUND, BOUND)),    I += GAIN * BETWEEN * e    with each count.

    A model, and still more an average of it, reacts late to another weight. Without the trend the weight
    would go on rising while the number is already on its way down.

    The state is three buffers of the loss. `LossStateCallback` therefore makes it equal on all ranks, saves
    it with each checkpoint and restores it. Between two counts the host waits for nothing. An evaluation uses
    the weights without the factors.

    Args:
        loss: The loss to control.
        count: Returns the mean number of active terms per text that the model would have if training ended
            now, by the kind of text; the same on all ranks, each of which calls it.
        query_terms: Wanted mean number of active terms per query, above 0; None gives queries the factor of
            documents.
        document_terms: The same for documents.

    Raises:
        ValueError: If a number is out of range, or the weight that would be multiplied is 0.

    Source: docs/losses.md, section 19.
    """

    def __init__(
        self,
        loss: NeuralSparseLoss,
        count: Callable[[], Mapping[TextKind, float]],
        *,
        query_terms: float | None = None,
        document_terms: float | None = None,
    ) -> None:
        check_wanted_terms(query_terms=query_terms, document_terms=document_terms)
        # The index of a side in the state -> its wanted number.
        self.wanted = {
            side: wanted for side, wanted in enumerate((query_terms, document_terms)) if wanted is not None
        }
        # Each side -> the side whose factor multiplies its term.
        self.leaders = {
            side: side if side in self.wanted else 1 - side
            for side in range(len(SIDES))
            if self.wanted and loss.weights[_term(side)]
        }
        for side in self.wanted:
            if not loss.weights[_term(side)]:
                raise ValueError(
                    f"{SIDES[side]}_terms multiplies the weight of {_term(side)}, which must be above 0; "
                    "received 0"
                )
        self.loss = loss
        self.count = count
        device = next(loss.parameters()).device
        sides = len(SIDES)
        for name, shape in ((INTEGRAL, (sides,)), (ERROR, (sides,)), (COUNTS, (TREND + 1, sides))):
            loss.register_buffer(name, torch.zeros(shape, device=device))

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin anew, unless the run is resumed: `LossStateCallback` then restores the state."""
        if not state.global_step:
            for name in (INTEGRAL, ERROR, COUNTS):
                self.loss.get_buffer(name).zero_()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the factors of the step that begins into the loss."""
        exponents = self.loss.get_buffer(INTEGRAL) + PROPORTIONAL * self.loss.get_buffer(ERROR)  # [2]
        factors = exponents.clamp(-BOUND, BOUND).exp()
        self.loss.sparsity_factors = {_term(side): factors[leader] for side, leader in self.leaders.items()}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count the active terms where it is time to, and move the factors towards the wanted number."""
        between = max(1, round(BETWEEN * state.max_steps))
        earlier, rest = divmod(state.global_step - max(1, math.ceil(START * state.max_steps)), between)
        if earlier < 0 or rest:
            return
        found = self.count()
        counts = self.loss.get_buffer(COUNTS)
        counts.copy_(counts.roll(-1, dims=0))
        counts[-1] = torch.tensor([found.get(side, 0.0) for side in SIDES])

        wanted = torch.tensor([self.wanted.get(side, math.nan) for side in range(len(SIDES))])
        distances = (counts.clamp(min=FEWEST) / wanted.to(counts)).log()  # [TREND + 1, 2]
        back = min(earlier, TREND)
        trend = (distances[-1] - distances[-1 - back]) / max(back, 1)
        error = (distances[-1] + AHEAD * state.max_steps / between * trend).clamp(-1, 1)
        self.loss.get_buffer(ERROR).copy_(error.nan_to_num(0.0))  # 0 for a side that is not controlled
        integral = self.loss.get_buffer(INTEGRAL)
        integral.add_(self.loss.get_buffer(ERROR), alpha=GAIN * between / state.max_steps)
        integral.clamp_(-BOUND, BOUND)

    def log_values(self) -> dict[str, float]:
        """Return what the log shows of each controlled side; this waits for the device.

        Returns:
            `<side>_terms_wanted` and, once they are counted, `<side>_terms_mean` (the last count) of each
            side that has a wanted number, and `<term>_weight`, the weight in force, without the ramp.
        """
        values: dict[str, float] = {}
        counted = self.loss.get_buffer(COUNTS)[-1].tolist()
        for side, wanted in self.wanted.items():
            values[f"{SIDES[side]}_terms_wanted"] = wanted
            if counted[side]:
                values[f"{SIDES[side]}_terms_mean"] = round(counted[side], 2)
        for side in self.leaders:
            weight = self.loss.weights[_term(side)] * float(self.loss.sparsity_factors.get(_term(side), 1.0))
            values[f"{_term(side)}_weight"] = float(f"{weight:.4g}")
        return values


def _term(side: int) -> str:
    """The name of the sparsity term of a side, as `NeuralSparseLoss` returns and logs it."""
    return f"flops_{SIDES[side]}"
