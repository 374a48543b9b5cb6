"""The one name under which the pure functions are called by other tools."""

from __future__ import annotations

import inspect

import pytest

from lexforge.losses import functional

# From the design: name -> parameters with their defaults.
SIGNATURES = {
    "info_nce": "anchor, positive, negatives=None, temperature=0.07, similarity='cosine', left_out=None",
    "nws": "queries, query_labels, prototypes, label_similarity, keys=None, key_labels=None, queue=None, "
    "queue_labels=None, alpha=1.0, beta=1.0, temperature=0.07, aggregate, eps=1e-08",
    "compute_label_pair_similarity": "labels, method",
    "self_reconstruction": "activations, input_ids, attention_mask",
    "positive_activation": "anchor, positive_input_ids, positive_attention_mask, special_token_ids=()",
    "triplet_margin": "anchor, positive, negative, margin=0.3, left_out=None",
    "flops": "activations",
    "idf_flops": "activations, penalty_weights, l2_ratio=0.3",
    "idf_penalty_weights": "idf, alpha=4.0, special_token_ids=(), special_penalty=100.0, stopword_ids=(), "
    "stopword_penalty=15.0",
    "minimum_activation": "activations, top_k=5, threshold=0.5",
    "distillation": "student_scores, teacher_scores, temperature=3.0, kl_weight=0.7, mse_weight=0.3, "
    "match_scale=False, left_out=None",
    "margin_mse": "student_scores, teacher_scores, scale=1.0, positive=None, left_out=None",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_names_and_defaults_are_those_of_the_design(name: str) -> None:
    """Other tools call these functions by name and position; what was added since is keyword-only."""
    parameters = inspect.signature(getattr(functional, name)).parameters.values()
    written = ", ".join(
        parameter.name if parameter.default is parameter.empty else f"{parameter.name}={parameter.default!r}"
        for parameter in parameters
    )
    assert written == SIGNATURES[name]


def test_every_exported_name_exists_once() -> None:
    """`__all__` is what a reader sees."""
    assert len(set(functional.__all__)) == len(functional.__all__)
    assert set(SIGNATURES) <= set(functional.__all__)
    assert all(callable(getattr(functional, name)) for name in functional.__all__)
