"""The controller that brings the mean number of active terms per text near a wanted number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.common.types import TEXT_KINDS, TextKind
from lexforge.losses import NeuralSparseLoss
from lexforge.settings import check_wanted_terms
from lexforge.sparsity.constants import (
    AFTER,
    ANCHOR,
    BETWEEN,
    BOUND,
    BOUND_WITH_QUERIES,
    FOLLOW,
    POWER,
    REACH,
)


class ActiveTermsController(TrainerCallback):
    """Choose the sparsity weights with which texts come near a wanted mean number of active terms.

    Before the first step, and again after each `BETWEEN` of training, n is counted: the mean number of active
    terms per text that the model would have if training ended there. The weight w is then set to

        log w = b + clip(log(n / wanted), -REACH, REACH) / POWER,

    and from `AFTER` of training on, before it, b += FOLLOW * BETWEEN * (log w - b).

    The base b is the logarithm of the weight that n answers to by now. It begins as log(ANCHOR), or as below,
    and follows w slowly, because a model, and still more an average of it, reacts late to another weight, and
    hardly at all while the learning rate warms up. The distance of n from the wanted number says by how much
    w must differ from that.

    Where both kinds of text have a wanted number, each has a weight of its own, and the base of the queries
    begins as the first log w of the documents. With log(ANCHOR) instead, queries trained with a weight far
    below that of the documents for half of training, and kept too many terms.

    The documents of the finished model are trimmed to their number (`trim_documents`). That moves queries
    too, and nothing brings them back to theirs.

    Of the weights that the loss was given, only the ratio of queries to documents has a meaning, and that
    only if one kind alone has a wanted number. Its factor then multiplies the terms of both kinds, as one
    weight of FLOPS that is set by hand would.

    The state is three tensors on the CPU, which follow from the counts and so are the same on all ranks; as a
    part of `lexforge.runs.RunStateCallback` they are kept in each checkpoint. The host never waits for the
    device between two counts. An evaluation uses the weights that the loss was given.

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
        wanted = zip(TEXT_KINDS, (query_terms, document_terms), strict=True)
        self.wanted = {kind: number for kind, number in wanted if number is not None}
        # Each kind -> the kind whose factor multiplies its term.
        self.leaders = {
            kind: kind if kind in self.wanted else next(iter(self.wanted))
            for kind in TEXT_KINDS
            if self.wanted and loss.weights[_term(kind)]
        }
        for kind in self.wanted:
            if not loss.weights[_term(kind)]:
                raise ValueError(
                    f"{kind}_terms multiplies the weight of {_term(kind)}, which must be above 0; received 0"
                )
        self.bound = BOUND if query_terms is None else BOUND_WITH_QUERIES
        self.given = {leader: loss.weights[_term(leader)] for leader in self.wanted}
        self.loss = loss
        self.count = count
        self._begin()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin anew, unless the run is resumed: `RunStateCallback` restores the state then."""
        if not state.global_step:
            self._begin()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count the active terms where it is time to, and write the factors of the step into the loss."""
        between = max(1, round(BETWEEN * state.max_steps))
        if state.global_step % between == 0:
            moves = state.global_step >= AFTER * state.max_steps
            follow = min(1.0, FOLLOW * between / state.max_steps) if moves else 0.0
            self._count(follow, first=not state.global_step)
        weights = dict(zip(TEXT_KINDS, self.weights.exp(), strict=True))  # tensors of no dimension
        factors = {leader: weights[leader] / given for leader, given in self.given.items()}
        self.loss.sparsity_factors = {_term(kind): factors[leader] for kind, leader in self.leaders.items()}

    def _begin(self) -> None:
        """Set the state to that before the first count, `[2]` float32 each, queries first."""
        self.bases = torch.full((len(TEXT_KINDS),), math.log(ANCHOR))  # logarithms
        self.weights = self.bases.clone()  # logarithms
        self.counts = torch.zeros(len(TEXT_KINDS))

    def state(self) -> dict[str, Tensor]:
        """Return the logarithms of the bases and of the weights, and the last counts, by name."""
        return {"bases": self.bases, "weights": self.weights, "counts": self.counts}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take what `state` returned."""
        self.bases, self.weights, self.counts = state["bases"], state["weights"], state["counts"]

    def _count(self, follow: float, *, first: bool) -> None:
        """Count the terms, let the bases go a share of the way to the weights, and set the weights."""
        found = self.count()
        self.counts = torch.tensor([found.get(kind, 0.0) for kind in TEXT_KINDS])
        wanted = torch.tensor([self.wanted.get(kind, math.nan) for kind in TEXT_KINDS])
        distances = (self.counts / wanted).log()  # -inf of empty texts is clipped
        distances.clamp_(-REACH, REACH).nan_to_num_(0.0)  # 0 for a kind that is not controlled
        if first and len(self.wanted) == len(TEXT_KINDS):
            query, document = range(len(TEXT_KINDS))
            # The first log w of the documents.
            self.bases[query] = self.bases[document] + distances[document] / POWER
        self.bases = self.bases.lerp(self.weights, follow)
        self.weights = (self.bases + distances / POWER).clamp(
            math.log(ANCHOR) - self.bound, math.log(ANCHOR) + self.bound
        )

    def log_values(self) -> dict[str, float]:
        """Return what the log shows of each controlled kind of text.

        Returns:
            `terms/<kind>_wanted` and, once they are counted, `terms/<kind>_counted` (the last count) of each
            kind that has a wanted number, and `weight/<term>`, the weight in force, without the ramp.
        """
        values: dict[str, float] = {}
        counted = dict(zip(TEXT_KINDS, self.counts.tolist(), strict=True))
        for kind, wanted in self.wanted.items():
            values[f"terms/{kind}_wanted"] = wanted
            if counted[kind]:
                values[f"terms/{kind}_counted"] = round(counted[kind], 2)
        for kind in self.leaders:
            weight = self.loss.weights[_term(kind)] * float(self.loss.sparsity_factors.get(_term(kind), 1.0))
            values[f"weight/{_term(kind)}"] = float(f"{weight:.4g}")
        return values


def _term(kind: TextKind) -> str:
    """The name of the sparsity term of a kind of text, as `NeuralSparseLoss` returns and logs it."""
    return f"flops_{kind}"
