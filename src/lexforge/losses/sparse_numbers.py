"""The numbers of `NeuralSparseLoss`: the one place that states their names, defaults and meaning."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class SparseLossNumbers:
    """Weights, temperatures and thresholds of `NeuralSparseLoss`; the defaults are those of V26.

    A term of weight 0 is switched off and not computed. Sections are those of docs/losses.md.

    Args:
        temperature: Divides the scores in InfoNCE, above 0 (section 1).
        infonce_weight: Weight of InfoNCE (section 1).
        self_reconstruction_weight: Weight of self-reconstruction (section 2).
        positive_activation_weight: Weight of positive activation (section 3).
        triplet_margin_weight: Weight of the triplet margin (section 4), averaged over the negative columns;
            above 0 the data needs negatives.
        margin: Margin of the triplet term, in units of the cosine.
        flops_weight: Weight of the sparsity term (section 5) of the documents.
        query_flops_weight: Weight of the sparsity term of the queries; None takes `flops_weight`.
        l2_ratio: beta, the share of the squared part in the IDF-aware sparsity term; not read by plain FLOPS.
        minimum_activation_weight: Weight of minimum activation (section 6).
        top_k: Number of strongest terms whose mean the minimum activation looks at.
        activation_threshold: Floor that the minimum activation sets for that mean.
        distillation_weight: Weight of distillation (section 7); above 0 the data needs a teacher's scores or
            embeddings.
        distillation_temperature: Temperature of the KL part of distillation, above 0.
        kl_weight: Weight of the KL part within distillation.
        mse_weight: Weight of the z-score part within distillation.
        margin_mse_weight: Weight of MarginMSE (section 7); above 0 the data needs a teacher, as distillation
            does.
        margin_mse_scale: Multiplies the student's margins in MarginMSE, above 0; None learns it, from 1.
        guide_margin: Where a number, InfoNCE and the triplet margin leave out every candidate whose teacher's
            score lies above that of the positive minus this margin (section 15); the data needs a teacher.

    Raises:
        ValueError: If a number is out of its range, or every weight is 0.

    Source: docs/losses.md, sections 1 to 8.
    """

    temperature: float = 0.07
    infonce_weight: float = 3.0
    self_reconstruction_weight: float = 0.5
    positive_activation_weight: float = 2.0
    triplet_margin_weight: float = 0.0
    margin: float = 0.3
    flops_weight: float = 0.010
    query_flops_weight: float | None = None
    l2_ratio: float = 0.3
    minimum_activation_weight: float = 1.0
    top_k: int = 5
    activation_threshold: float = 0.5
    distillation_weight: float = 2.0
    distillation_temperature: float = 3.0
    kl_weight: float = 0.7
    mse_weight: float = 0.3
    margin_mse_weight: float = 0.0
    margin_mse_scale: float | None = 1.0
    guide_margin: float | None = None

    def __post_init__(self) -> None:
        for name, weight in self.term_weights().items():
            if not 0 <= weight < math.inf:
                raise ValueError(f"the weight of {name} must be finite and >= 0; received {weight}")
        if not any(self.term_weights().values()):
            raise ValueError("at least one weight must be above 0; received 0 for every term")
        for name in ("temperature", "distillation_temperature"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0; received {getattr(self, name)}")
        for name in ("l2_ratio", "margin", "kl_weight", "mse_weight"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be >= 0; received {getattr(self, name)}")

        if self.margin_mse_scale is not None and not 0 < self.margin_mse_scale < math.inf:
            raise ValueError(
                f"margin_mse_scale must be finite and > 0, or None; received {self.margin_mse_scale}"
            )
        if self.guide_margin is not None and not math.isfinite(self.guide_margin):
            raise ValueError(f"guide_margin must be finite or None; received {self.guide_margin}")

    @property
    def needs_teacher(self) -> bool:
        """Whether a term, or the choice of negatives, reads a teacher's scores or embeddings."""
        return bool(self.distillation_weight or self.margin_mse_weight) or self.guide_margin is not None

    def term_weights(self) -> dict[str, float]:
        """Return the weight of each term under the name by which the loss returns and logs it."""
        query_flops = self.flops_weight if self.query_flops_weight is None else self.query_flops_weight
        return {
            "infonce": self.infonce_weight,
            "self_reconstruction": self.self_reconstruction_weight,
            "positive_activation": self.positive_activation_weight,
            "triplet_margin": self.triplet_margin_weight,
            "flops_query": query_flops,
            "flops_document": self.flops_weight,
            "minimum_activation": self.minimum_activation_weight,
            "distillation": self.distillation_weight,
            "margin_mse": self.margin_mse_weight,
        }


NUMBER_NAMES = tuple(field.name for field in fields(SparseLossNumbers))
