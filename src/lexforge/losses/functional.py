"""The pure functions of every loss, on tensors, under one name."""

from lexforge.losses.cosent import cosent
from lexforge.losses.distillation import distillation, margin_mse
from lexforge.losses.flops import flops, idf_flops, idf_penalty_weights
from lexforge.losses.hcl import hcl
from lexforge.losses.infonce import info_nce
from lexforge.losses.label_similarity import compute_label_pair_similarity
from lexforge.losses.minimum_activation import minimum_activation
from lexforge.losses.moco import moco
from lexforge.losses.nws import nws
from lexforge.losses.own_activation import own_activation, word_weights
from lexforge.losses.positive_activation import positive_activation
from lexforge.losses.self_reconstruction import self_reconstruction
from lexforge.losses.triplet import triplet_margin

__all__ = [
    "compute_label_pair_similarity",
    "cosent",
    "distillation",
    "flops",
    "hcl",
    "idf_flops",
    "idf_penalty_weights",
    "info_nce",
    "margin_mse",
    "minimum_activation",
    "moco",
    "nws",
    "own_activation",
    "positive_activation",
    "self_reconstruction",
    "triplet_margin",
    "word_weights",
]
