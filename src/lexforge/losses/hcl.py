"""HCL: contrast against hard negatives, corrected for false ones (docs/losses.md, section 13)."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lexforge.common.similarity import agreed_similarity
from lexforge.losses.base import EmbeddingLoss, Features
from lexforge.losses.false_negatives import BatchTexts, share_left_out
from lexforge.losses.gradient_cache import MiniBatchSize
from lexforge.losses.precision import in_float32
from lexforge.losses.similarity import unit_rows
from lexforge.settings import check_positive

Estimator = Literal["hard", "easy"]


def _check_numbers(temperature: float, tau_plus: float, beta: float, estimator: str) -> None:
    """Refuse numbers that the estimator is not defined for, and an unknown estimator."""
    check_positive(temperature=temperature)
    if not 0 <= tau_plus < 1:
        raise ValueError(f"tau_plus must lie in [0, 1); received {tau_plus}")
    if not 0 <= beta < float("inf"):
        raise ValueError(f"beta must be >= 0 and finite; received {beta}")
    if estimator not in get_args(Estimator):
        raise ValueError(f'estimator must be "hard" or "easy"; received {estimator!r}')


@in_float32
def hcl(
    view_a: Tensor,
    view_b: Tensor,
    temperature: float = 0.5,
    tau_plus: float = 0.1,
    beta: float = 1.0,
    estimator: Estimator = "hard",
) -> Tensor:
    """Contrast two views of B texts, each of the 2B rows against the 2B - 2 rows of other texts.

    With p = exp(s(a_i, b_i) / T), n_j = exp(s_ij / T) over the N = 2B - 2 negatives j of a row, by dot
    product (pass L2-normalised rows):

        L = mean over 2B rows of -log( p / (p + Ng) )
        easy:  Ng = sum of n_j
        hard:  Ng = max( (sum_j n_j^(1 + beta) / mean_j n_j^beta - tau_plus N p) / (1 - tau_plus),
                         N exp(-1 / T) )

    `hard` weighs the negatives by their own hardness and subtracts what the share `tau_plus` of false
    negatives is expected to add. Everything is computed in log space, so that no temperature overflows. Where
    the lower bound holds, Ng has no gradient.

    Args:
        view_a: `[B, D]` float.
        view_b: `[B, D]` float; row i is another view of text i.
        temperature: T, > 0.
        tau_plus: Expected share of false negatives, in [0, 1); `hard` only.
        beta: Concentration on hard negatives, >= 0; `hard` only.
        estimator: "hard" or "easy".

    Returns:
        0-dim float, connected to the graph; a row without a negative adds 0.

    Raises:
        ValueError: If shapes disagree, a number is out of range or the estimator unknown.

    Source: docs/losses.md, section 13; Robinson et al. 2021 (arXiv 2010.04592); the correction for false
    negatives: Chuang et al. 2020 (arXiv 2007.00224).
    """
    _check_numbers(temperature, tau_plus, beta, estimator)
    if view_a.dim() != 2 or view_a.shape != view_b.shape:
        raise ValueError(
            f"view_a and view_b must both be [B, D]; received {tuple(view_a.shape)} and {tuple(view_b.shape)}"
        )
    views, places = [view_a, view_b], torch.arange(len(view_a), device=view_a.device)
    return _contrast(views, views, places, temperature, tau_plus, beta, estimator)


def _contrast(
    views: list[Tensor],
    all_views: list[Tensor],
    places: Tensor,
    temperature: float,
    tau_plus: float,
    beta: float,
    estimator: Estimator,
    left_out: Tensor | None = None,
) -> Tensor:
    """Contrast this rank's rows of both views, which stand at `places` [count] in all rows, with all rows.

    `left_out` is `[count, total]` bool, True where the views of one text are no negatives of the views of
    another (section 15); None leaves out no text.
    """
    rows, candidates = torch.cat(views), torch.cat(all_views)
    total = len(all_views[0])
    if total < 2:
        return rows[:0].sum()
    own, partner = torch.cat([places, places + total]), torch.cat([places + total, places])
    scores = rows @ candidates.T / temperature  # [2 * count, 2 * total]
    positive = scores.gather(1, partner[:, None]).squeeze(1)
    same_text = torch.zeros_like(scores, dtype=torch.bool)
    same_text.scatter_(1, torch.stack([own, partner], dim=1), True)
    if left_out is not None:
        same_text |= left_out.repeat(2, 2)
    negative_count = (~same_text).sum(dim=1)  # [2 * count]
    has_negative = negative_count > 0
    same_text &= has_negative[:, None]  # A row without a negative adds 0 below; its sums stay finite here.

    def log_sum(power: float) -> Tensor:
        """Log of the sum over the negatives of n_j ^ power."""
        return (power * scores).masked_fill(same_text, -torch.inf).logsumexp(dim=1)

    if estimator == "easy":
        negatives = log_sum(1.0)
    else:
        log_count = negative_count.clamp_min(1).double().log().to(scores.dtype)  # [2 * count]
        reweighted = log_sum(1 + beta) - log_sum(beta) + log_count
        negatives = _debiased(reweighted, positive, log_count, tau_plus, -1 / temperature + log_count)
    return F.softplus(negatives - positive).where(has_negative, 0).mean()


def _debiased(
    reweighted: Tensor, positive: Tensor, log_count: Tensor, tau_plus: float, bound: Tensor
) -> Tensor:
    """Log of max((exp(reweighted) - tau_plus * N * exp(positive)) / (1 - tau_plus), exp(bound)).

    log(e^a - e^b) = a + log(1 - e^(b - a)), taken only in the rows where it exceeds the bound: elsewhere the
    difference may be 0 or negative, and its gradient would be NaN.
    """
    negatives = reweighted - math.log1p(-tau_plus)
    if tau_plus:
        share = math.log(tau_plus) + log_count + positive - reweighted
        with torch.no_grad():
            above = negatives + torch.log(-torch.expm1(share.clamp_max(0))) > bound
        negatives = negatives + torch.log(-torch.expm1(share.where(above, -1.0)))
    else:
        above = negatives > bound
    return negatives.where(above, bound)


class HCLLoss(EmbeddingLoss):
    """HCL on pairs of texts that say the same: hard negatives count more, and some may be false.

    `lexforge.losses.functional.hcl` states the formula; `easy` is the SimCLR loss.

    Rows whose texts are known to say the same are no negatives of each other (docs/losses.md, section 15).

    When to use it: pairs `(anchor, positive)` without mined negatives, where many other texts of a batch may
    be positives too (few topics, near-duplicates): `tau_plus` is about the chance of that. Each column is
    contrasted with both columns, so they should hold texts of the same kind; for short queries and long
    documents take `InfoNCELoss`.

    What to tune: `beta` (0 weighs all negatives alike; useful values are .5 to 2, and high values chase false
    negatives), `tau_plus` (0 where no other row is a positive, otherwise .01 to .1) and `temperature` (.5 as
    in the paper; .05 to .1 for pretrained text encoders, with a smaller `tau_plus`). The similarity is the
    cosine by definition: a model that is searched by dot product is refused.

    Args:
        model: The `SentenceTransformer` or `SparseEncoder` to train.
        temperature: T, > 0.
        tau_plus: Expected share of false negatives, in [0, 1); `hard` only.
        beta: Concentration on hard negatives, >= 0; `hard` only.
        estimator: "hard" or "easy".
        gather_across_devices: Contrast with the texts of all ranks; see `EmbeddingLoss`.
        mini_batch_size: Rows that are encoded at once, "auto" or None; see `EmbeddingLoss`.

    Raises:
        ValueError: If a number is out of range, the estimator is unknown, the model is searched by dot
            product, or a batch does not have two text columns.

    Source: docs/losses.md, section 13; Robinson et al. 2021 (arXiv 2010.04592).
    """

    card_settings = ("temperature", "tau_plus", "beta", "estimator", "gather_across_devices")

    def __init__(
        self,
        model: nn.Module,
        temperature: float = 0.5,
        tau_plus: float = 0.1,
        beta: float = 1.0,
        estimator: Estimator = "hard",
        gather_across_devices: bool = False,
        mini_batch_size: MiniBatchSize = None,
    ) -> None:
        super().__init__(model, mini_batch_size, gather_across_devices)
        _check_numbers(temperature, tau_plus, beta, estimator)
        self.similarity = agreed_similarity(model, "cosine", loss="HCLLoss")
        self.temperature = temperature
        self.tau_plus = tau_plus
        self.beta = beta
        self.estimator: Estimator = estimator

    def compute_loss(
        self, embeddings: list[Tensor], features: list[Features] | None, labels: Tensor | None
    ) -> Tensor:
        """Compute the loss; see `EmbeddingLoss.forward`.

        Args:
            embeddings: Two `[B, D]` float columns.
            features: One dict per column, whose texts say which rows are no negatives; None takes all.
            labels: Not read.

        Returns:
            0-dim float.
        """
        if len(embeddings) != 2:
            raise ValueError(
                f"HCLLoss needs the columns (anchor, positive); received {len(embeddings)} text columns"
            )
        views = [unit_rows(rows) for rows in embeddings]
        gathered = [self._compared(rows) for rows in views]
        own = self._own_places(views[0])
        texts = BatchTexts.of(features, self.gather_across_devices)
        left_out = None if texts is None else texts.same_meaning()  # [B, P], by texts
        self.metrics = share_left_out(left_out)
        return _contrast(
            views, gathered, own, self.temperature, self.tau_plus, self.beta, self.estimator, left_out
        )

    # The paper, for the model card.
    citation = """
@inproceedings{robinson2021contrastive,
    title={Contrastive Learning with Hard Negative Samples},
    author={Robinson, Joshua and Chuang, Ching-Yao and Sra, Suvrit and Jegelka, Stefanie},
    booktitle={International Conference on Learning Representations},
    year={2021}
}
"""
