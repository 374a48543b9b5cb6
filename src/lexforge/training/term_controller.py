"""The controller that brings the mean number of active terms per text to a wanted number."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.common.ranks import sum_over_ranks, world_size
from lexforge.losses import NeuralSparseLoss

START = 0.1  # share of training after which the controller acts
GAIN = 40.0  # how far the logarithm of a weight moves in the whole training, while n is e times too large
PROPORTIONAL = 2.0  # what the present error adds to the logarithm; it damps the swing around the target
BOUND = math.log(1e6)  # a weight stays within this factor of the given one
AVERAGED_SHARE = 0.02  # share of training over which the number of active terms is averaged
CALMER, CALMEST = 0.5, 0.25  # the rate's factor where the error changes its sign, and its least value
# Buffers of the loss, [2] each; WANTED is no part of its state.
INTEGRAL, AVERAGE, RATE = "active_terms_integral", "active_terms_average", "active_terms_rate"
WANTED = "active_terms_wanted"
SIDES = ("query", "document")


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

    After each optimizer step, n is the mean number of active terms per text, over all ranks and micro-batches
    of the step and then as a moving average over `AVERAGED_SHARE` of training. With the error
    e = clip(log(n / wanted), -1, 1), the weight of the sparsity term is multiplied by

        exp(clip(I + PROPORTIONAL * r * e, -BOUND, BOUND)),    I += GAIN / max_steps * r * e,

    from `START` of training on. I goes on until the error is gone. The second part answers at once: a model
    reacts to another weight with a delay, and I alone would swing around the target. r is 1 until the target
    is reached. Whenever e changes its sign it is halved, down to 1/4, so that swings die out.

    The state (I, the average and r) is three buffers of the loss. `LossStateCallback` therefore makes it
    equal on all ranks, saves it with each checkpoint and restores it. Everything is computed on the device of
    the loss, so the host never waits for it. An evaluation uses the weights without the factors.

    Args:
        loss: The loss to control.
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
        self._counts: list[Tensor] = []  # of each micro-batch of the step under way, [2]
        device = next(loss.parameters()).device
        for name in (INTEGRAL, AVERAGE, RATE):
            loss.register_buffer(name, torch.zeros(len(SIDES), device=device))
        self._reset()
        wanted = [self.wanted.get(side, math.nan) for side in range(len(SIDES))]
        loss.register_buffer(WANTED, torch.tensor(wanted, device=device), persistent=False)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin anew, unless the run is resumed: `LossStateCallback` then restores the state."""
        self._counts.clear()
        if not state.global_step:
            self._reset()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the factors of the step that begins into the loss."""
        self.loss.sparsity_factors = {}
        if state.global_step > START * state.max_steps:
            answer = PROPORTIONAL * self.loss.get_buffer(RATE) * self._errors()
            exponents = self.loss.get_buffer(INTEGRAL) + answer  # [2]
            factors = exponents.clamp(-BOUND, BOUND).exp()
            self.loss.sparsity_factors = {
                _term(side): factors[leader] for side, leader in self.leaders.items()
            }

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Note the active terms of a micro-batch that is not the last of its step."""
        self._counts.append(torch.stack([self.loss.metrics[f"{side}_active_dims"] for side in SIDES]))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Follow the number of active terms, and move the factors towards the wanted one."""
        self.on_substep_end(args, state, control)
        counts = torch.stack(self._counts).mean(dim=0)  # [2]
        self._counts.clear()
        counts = sum_over_ranks(counts) / world_size()

        average, integral, rate = (self.loss.get_buffer(name) for name in (AVERAGE, INTEGRAL, RATE))
        before = self._errors()
        share = min(1.0, 1 / (AVERAGED_SHARE * state.max_steps))
        # The first step has no average yet.
        average.copy_(torch.where(average > 0, average.lerp(counts.to(average.dtype), share), counts))
        if state.global_step > START * state.max_steps:
            errors = self._errors()
            rate.copy_(torch.where(before * errors < 0, (CALMER * rate).clamp(min=CALMEST), rate))
            integral.add_(rate * errors, alpha=GAIN / state.max_steps).clamp_(-BOUND, BOUND)

    def log_values(self) -> dict[str, float]:
        """Return what the log shows of each controlled side; this waits for the device.

        Returns:
            `<side>_terms_wanted` and `<side>_terms_mean` (the moving average) of each side that has a wanted
            number, and `<term>_weight`, the weight in force, without the ramp.
        """
        values: dict[str, float] = {}
        average = self.loss.get_buffer(AVERAGE).tolist()
        for side, wanted in self.wanted.items():
            values[f"{SIDES[side]}_terms_wanted"] = wanted
            values[f"{SIDES[side]}_terms_mean"] = round(average[side], 2)
        for side in self.leaders:
            weight = self.loss.weights[_term(side)] * float(self.loss.sparsity_factors.get(_term(side), 1.0))
            values[f"{_term(side)}_weight"] = float(f"{weight:.4g}")
        return values

    def _reset(self) -> None:
        """Begin with no error, no average and the full rate."""
        for name in (INTEGRAL, AVERAGE):
            self.loss.get_buffer(name).zero_()
        self.loss.get_buffer(RATE).fill_(1)

    def _errors(self) -> Tensor:
        """The error of each side, `[2]`; 0 for one that is not controlled."""
        ratio = self.loss.get_buffer(AVERAGE) / self.loss.get_buffer(WANTED)
        return ratio.log().clamp(-1, 1).nan_to_num(0.0)


def _term(side: int) -> str:
    """The name of the sparsity term of a side, as `NeuralSparseLoss` returns and logs it."""
    return f"flops_{SIDES[side]}"
