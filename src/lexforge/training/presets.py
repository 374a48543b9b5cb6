"""The settings of the loss under their names: V22, V23, V25 and V26 of seed 003, the plain baseline, and our
own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from torch import Tensor

from lexforge.losses.functional import idf_penalty_weights
from lexforge.training.curriculum import Phase

PresetName = Literal["lexforge", "plain", "v22", "v23", "v25", "v26"]


@dataclass(frozen=True)
class Preset:
    """Every number of the loss and its curriculum; the defaults are those of V26.

    Args:
        similarity: Similarity of training, evaluation and every index: "cosine" or "dot".
        temperature: Temperature of InfoNCE outside the curriculum.
        infonce_weight: Weight of InfoNCE outside the curriculum.
        self_reconstruction_weight: Weight of self-reconstruction.
        positive_activation_weight: Weight of positive activation.
        triplet_margin_weight: Weight of the triplet margin; above 0 the data needs negatives.
        flops_weight: Weight of the sparsity term of documents.
        query_flops_weight: The same for queries; None takes `flops_weight`.
        minimum_activation_weight: Weight of minimum activation.
        distillation_weight: Weight of distillation outside the curriculum; above 0 the run needs a teacher.
        idf_alpha: Steepness of the IDF-aware penalty; None is the plain FLOPS of SPLADE.
        special_penalty: Fixed penalty of special tokens; None leaves them inside the idf range, as before
            V26.
        stopword_penalty: Factor on the penalty of stop words.
        l2_ratio: beta, the weight of the squared part of the IDF-aware form.
        ramp_fraction: Share of training over which sparsity weights and penalties grow; 0 is the seed's form.
        margin: Margin of the triplet term.
        top_k: Number of terms of the minimum activation.
        activation_threshold: Floor of the minimum activation.
        distillation_temperature: Temperature of the KL part.
        kl_weight: Weight of the KL part within distillation.
        mse_weight: Weight of the z-score part within distillation.
        phases: The curriculum; empty for none.
    """

    similarity: Literal["cosine", "dot"] = "cosine"
    temperature: float = 0.07
    infonce_weight: float = 3.0
    self_reconstruction_weight: float = 0.5
    positive_activation_weight: float = 2.0
    triplet_margin_weight: float = 0.0
    flops_weight: float = 0.010
    query_flops_weight: float | None = None
    minimum_activation_weight: float = 1.0
    distillation_weight: float = 2.0
    idf_alpha: float | None = 4.0
    special_penalty: float | None = 100.0
    stopword_penalty: float = 15.0
    l2_ratio: float = 0.3
    ramp_fraction: float = 0.0
    margin: float = 0.3
    top_k: int = 5
    activation_threshold: float = 0.5
    distillation_temperature: float = 3.0
    kl_weight: float = 0.7
    mse_weight: float = 0.3
    phases: tuple[Phase, ...] = (
        Phase(
            8 / 25, temperature=0.08, infonce_weight=2.5, distillation_weight=2.5, learning_rate_factor=1.0
        ),
        Phase(
            17 / 25, temperature=0.05, infonce_weight=3.0, distillation_weight=1.5, learning_rate_factor=0.5
        ),
        Phase(1.0, temperature=0.04, infonce_weight=3.0, distillation_weight=0.8, learning_rate_factor=0.25),
    )

    def loss_arguments(self) -> dict[str, Any]:
        """The settings that `NeuralSparseLoss` takes by the same name.

        The idf settings need a corpus (see `penalty_weights`); ramp and phases are the trainer's.
        """
        elsewhere = {"idf_alpha", "special_penalty", "stopword_penalty", "ramp_fraction", "phases"}
        return {
            field.name: getattr(self, field.name) for field in fields(self) if field.name not in elsewhere
        }

    def penalty_weights(
        self, idf: Tensor, special_token_ids: Sequence[int], stopword_ids: Sequence[int]
    ) -> Tensor | None:
        """The idf settings applied to a corpus: what `NeuralSparseLoss` takes as `penalty_weights`.

        Args:
            idf: `[V]` float, inverse document frequencies of the corpus.
            special_token_ids: Ids of special tokens.
            stopword_ids: Ids of stop words.

        Returns:
            `[V]` float, or None for the plain FLOPS.
        """
        if self.idf_alpha is None:
            return None
        return idf_penalty_weights(
            idf,
            alpha=self.idf_alpha,
            special_token_ids=() if self.special_penalty is None else special_token_ids,
            special_penalty=self.special_penalty or 0.0,
            stopword_ids=stopword_ids,
            stopword_penalty=self.stopword_penalty,
        )


V26 = Preset()
V25 = Preset(flops_weight=0.002, idf_alpha=2.5, special_penalty=None, stopword_penalty=5.0, phases=())
# Seed 003 gives V22 and V23 no idf settings: they regularise by plain FLOPS.
V23 = Preset(
    infonce_weight=2.5,
    self_reconstruction_weight=1.0,
    positive_activation_weight=3.0,
    flops_weight=0.003,
    distillation_weight=1.0,
    idf_alpha=None,
    special_penalty=None,
    stopword_penalty=1.0,
    phases=(),
)
V22 = Preset(
    infonce_weight=2.0,
    self_reconstruction_weight=4.0,
    positive_activation_weight=10.0,
    triplet_margin_weight=2.5,
    flops_weight=0.005,
    distillation_weight=0.0,
    idf_alpha=None,
    special_penalty=None,
    stopword_penalty=1.0,
    phases=(),
)
PLAIN = Preset(
    similarity="dot",
    temperature=1.0,
    infonce_weight=1.0,
    self_reconstruction_weight=0.0,
    positive_activation_weight=0.0,
    flops_weight=3e-4,
    minimum_activation_weight=0.0,
    distillation_weight=0.0,
    idf_alpha=None,
    special_penalty=None,
    stopword_penalty=1.0,
    ramp_fraction=1 / 3,
    phases=(),
)
# What recipes/README.md leaves of V26 on every set tried: the plain baseline and the floor of minimum
# activation, which costs a healthy model nothing and holds one that is about to collapse.
LEXFORGE = replace(PLAIN, minimum_activation_weight=1.0)

PRESETS: dict[PresetName, Preset] = {
    "lexforge": LEXFORGE,
    "plain": PLAIN,
    "v22": V22,
    "v23": V23,
    "v25": V25,
    "v26": V26,
}
