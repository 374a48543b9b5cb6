"""The settings of the loss under their names: V22, V23, V25, V26, the plain baseline and our own default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from lexforge.common.similarity import Similarity
from lexforge.losses.sparse_numbers import NUMBER_NAMES, SparseLossNumbers
from lexforge.sparsity.finishing_numbers import check_finishing_numbers
from lexforge.training.curriculum import Phase

if TYPE_CHECKING:
    from torch import Tensor

PresetNegatives = Literal["none", "mined", "bm25"]
PresetTeacher = Literal["lsa", "bm25"]
PresetName = Literal["lexforge", "lexforge-scratch", "plain", "v22", "v23", "v25", "v26"]
"""The names of the presets in `PRESETS`."""


@dataclass(frozen=True)
class Preset(SparseLossNumbers):
    """The numbers of the loss (`SparseLossNumbers`) and what a run sets beside them; the defaults are V26.

    Where a curriculum is given, its temperature, InfoNCE weight and distillation weight replace those of the
    loss, phase by phase.

    Args:
        similarity: Similarity of training, evaluation and every index: "cosine" or "dot".
        idf_alpha: Steepness of the IDF-aware penalty; None is the plain FLOPS of SPLADE.
        special_penalty: Fixed penalty of special tokens; None leaves them inside the idf range, as before
            V26.
        stopword_penalty: Factor on the penalty of stop words.
        negatives: Hard negatives of the rows that are made of judgements, where the user names none: none;
            those that the model mines before the first step; or those of BM25.
        teacher: Teacher of distillation where the user names none: the fitted `lsa`; or `bm25`, which teaches
            only if it ranks training queries better than the model before training.
        scale_head: Whether the head of a masked language model that was not trained for SPLADE gets its scale
            from the documents before training. A model without a head gets it with every preset.
        idf_bias: Shift of a term's logit per unit of its idf, before training, in a pretrained encoder; the
            lexical backbone has idf in its weights already. 0 shifts nothing.
        start_share: Share of the weights of the start in the model that training leaves, in [0, 1).
        prune_threshold: What a term's logit must exceed in that model, >= 0.
        average_horizon: Number of steps over which the trained weights in that model are averaged, as a share
            of all steps, in [0, 1]; 0 takes the weights of the last step.
        lr_scheduler_type: What becomes of the learning rate after the warm-up: it falls to 0 as a cosine, or
            stays, which is good where the weights are averaged.
        learning_rate: Peak learning rate for a pretrained encoder, where a recipe is given none.
        learning_rate_width: Hidden size of the encoder that this rate was chosen for; a wider one takes less,
            in proportion. None takes the rate for every encoder.
        scratch_learning_rate: The same for the lexical backbone.
        ramp_fraction: Share of training over which sparsity weights and penalties grow to their full values;
            0 puts the full values in force at once, as V26 does.
        phases: The curriculum; empty for none.

    Source: docs/losses.md, sections 5, 8, 9 and 18.
    """

    similarity: Similarity = "cosine"
    idf_alpha: float | None = 4.0
    special_penalty: float | None = 100.0
    stopword_penalty: float = 15.0
    negatives: PresetNegatives = "none"
    teacher: PresetTeacher = "lsa"
    scale_head: bool = False
    idf_bias: float = 0.0
    start_share: float = 0.0
    prune_threshold: float = 0.0
    average_horizon: float = 0.0
    lr_scheduler_type: Literal["cosine", "constant_with_warmup"] = "cosine"
    learning_rate: float = 3e-5
    learning_rate_width: int | None = None
    scratch_learning_rate: float = 1e-3
    ramp_fraction: float = 0.0
    phases: tuple[Phase, ...] = (
        Phase(
            8 / 25, temperature=0.08, infonce_weight=2.5, distillation_weight=2.5, learning_rate_factor=1.0
        ),
        Phase(
            17 / 25, temperature=0.05, infonce_weight=3.0, distillation_weight=1.5, learning_rate_factor=0.5
        ),
        Phase(1.0, temperature=0.04, infonce_weight=3.0, distillation_weight=0.8, learning_rate_factor=0.25),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_finishing_numbers(
            start_share=self.start_share,
            prune_threshold=self.prune_threshold,
            average_horizon=self.average_horizon,
        )

    def loss_arguments(self) -> dict[str, Any]:
        """Return the settings that `NeuralSparseLoss` takes by the same name.

        The idf settings need a corpus (see `penalty_weights`); ramp and phases are the trainer's.
        """
        return {name: getattr(self, name) for name in ("similarity", *NUMBER_NAMES)}

    def penalty_weights(
        self, idf: Tensor, special_token_ids: Sequence[int], stopword_ids: Sequence[int]
    ) -> Tensor | None:
        """Apply the idf settings to a corpus: what `NeuralSparseLoss` takes as `penalty_weights`.

        Args:
            idf: `[V]` float, inverse document frequencies of the corpus.
            special_token_ids: Ids of special tokens.
            stopword_ids: Ids of stop words.

        Returns:
            `[V]` float, or None for the plain FLOPS.
        """
        if self.idf_alpha is None:
            return None
        from lexforge.losses.flops import idf_penalty_weights  # loads torch, which --help need not wait for

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
# V22 and V23 have no idf settings (docs/losses.md, section 8): they regularise by plain FLOPS.
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
    learning_rate=1e-4,
    learning_rate_width=128,
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
# What ranks better than the plain baseline with fewer terms, by the tables of recipes/README.md: idf in the
# bias, hard negatives, a higher learning rate that stays high, a higher temperature with a higher weight of
# FLOPS, and at the end an average of the weights over steps and with the start.
# Minimum activation is 0 for a healthy model and holds up one that is about to collapse. BM25 teaches the
# exact words to a model that it is ahead of.
LEXFORGE = replace(
    PLAIN,
    temperature=2.0,
    flops_weight=1e-3,
    minimum_activation_weight=1.0,
    distillation_weight=0.5,
    distillation_temperature=2.0,  # spreads of the teacher's scores
    kl_weight=1.0,
    mse_weight=0.0,
    negatives="mined",
    teacher="bm25",
    scale_head=True,
    idf_bias=0.35,
    start_share=0.45,
    prune_threshold=0.3,
    average_horizon=1 / 6,
    lr_scheduler_type="constant_with_warmup",
    learning_rate=3e-4,
)
# The lexical backbone has idf in its weights and smaller scores from the start. It starts as BM25, so that it
# takes the documents that BM25 ranks best for answers itself. A small collection soon teaches it noise. The
# lower rate, and the half of the start that is kept, hold what BM25 knows.
LEXFORGE_SCRATCH = replace(
    LEXFORGE,
    temperature=0.15,
    distillation_weight=0.0,
    negatives="bm25",
    idf_bias=0.0,
    start_share=0.5,
    prune_threshold=0.0,
    average_horizon=0.0,
    lr_scheduler_type="cosine",
    scratch_learning_rate=5e-4,
)

PRESETS: dict[PresetName, Preset] = {
    "lexforge": LEXFORGE,
    "lexforge-scratch": LEXFORGE_SCRATCH,
    "plain": PLAIN,
    "v22": V22,
    "v23": V23,
    "v25": V25,
    "v26": V26,
}
"""The presets by name; docs/losses.md, section 8, shows their numbers side by side."""
