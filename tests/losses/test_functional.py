"""The one name under which the pure functions are called by other tools."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lexforge.losses import functional

# From the design: name -> parameters with their defaults.
SIGNATURES = {
    "info_nce": "anchor, positive, negatives=None, temperature=0.07, similarity='cosine'",
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
    "own_activation": "activations, input_ids, attention_mask, word_weights, floor=1.0",
    "word_weights": "idf, special_token_ids=(), stopword_ids=()",
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


ROWS, VOCABULARY = 64, 30522


def rows_with_a_zero_row(count: int, width: int) -> torch.Tensor:
    """Sparse activations as of a vocabulary; the third row of them is empty."""
    rows = 5 * torch.rand(count, width) * (torch.rand(count, width) < 0.2)
    rows[2:3] = 0
    return rows


def tokens(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(VOCABULARY, (rows, 12)), torch.ones(rows, 12, dtype=torch.int64)


def multi_hot(count: int) -> torch.Tensor:
    return (torch.rand(count, 6) < 0.4).float()


# name -> arguments of so many rows: tensors, of which those that float get the dtype of the test, and others
CASES: dict[str, Callable[[int], tuple[list[Any], dict[str, Any]]]] = {
    "compute_label_pair_similarity": lambda rows: ([multi_hot(300)], {"method": "npmi"}),
    "cosent": lambda rows: ([torch.rand(4000), torch.randint(5, (4000,)).float()], {}),
    "distillation": lambda rows: ([400 * torch.rand(rows, 300), 90 * torch.rand(rows, 300)], {}),
    "flops": lambda rows: ([rows_with_a_zero_row(rows, VOCABULARY)], {}),
    "hcl": lambda rows: ([torch.nn.functional.normalize(torch.randn(rows, 64), dim=1) for _ in range(2)], {}),
    "idf_flops": lambda rows: ([rows_with_a_zero_row(rows, VOCABULARY), 100 * torch.rand(VOCABULARY)], {}),
    "idf_penalty_weights": lambda rows: ([12 * torch.rand(VOCABULARY)], {"special_token_ids": [0, 1]}),
    "info_nce": lambda rows: (
        [rows_with_a_zero_row(rows, VOCABULARY) for _ in range(2)] + [torch.rand(rows, 1, VOCABULARY)],
        {},
    ),
    "margin_mse": lambda rows: ([400 * torch.rand(rows, 300), 90 * torch.rand(rows, 300)], {}),
    "minimum_activation": lambda rows: ([rows_with_a_zero_row(rows, VOCABULARY)], {"threshold": 6.0}),
    "moco": lambda rows: (
        [torch.nn.functional.normalize(torch.randn(n, 64), dim=1) for n in (rows, rows, 900)],
        {},
    ),
    "nws": lambda rows: (
        [rows_with_a_zero_row(rows, 64), multi_hot(rows), torch.randn(6, 64), torch.eye(6)],
        {
            "keys": rows_with_a_zero_row(rows, 64),
            "key_labels": multi_hot(rows),
            "aggregate": "mean",
            "alpha": 0.5,
        },
    ),
    "own_activation": lambda rows: (
        [rows_with_a_zero_row(rows, VOCABULARY), *tokens(rows), 12 * torch.rand(VOCABULARY)],
        {"floor": 6.0},
    ),
    "positive_activation": lambda rows: ([rows_with_a_zero_row(rows, VOCABULARY), *tokens(rows)], {}),
    "self_reconstruction": lambda rows: ([rows_with_a_zero_row(rows, VOCABULARY), *tokens(rows)], {}),
    "triplet_margin": lambda rows: ([rows_with_a_zero_row(rows, VOCABULARY) for _ in range(3)], {}),
    "word_weights": lambda rows: ([12 * torch.rand(VOCABULARY)], {"special_token_ids": [0, 1]}),
}


@pytest.mark.parametrize("name", functional.__all__)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_function_computes_in_float32_at_least(name: str, dtype: torch.dtype) -> None:
    """A vocabulary has 30,522 terms: sums over it overflow in float16, and a zero row was divided by 0. The
    oracle is the same function in float64, on the same rounded numbers."""
    torch.manual_seed(0)
    arguments, named = CASES[name](ROWS)
    function = getattr(functional, name)

    def cast(value: Any, to: torch.dtype) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(to) if floating else value

    given = [cast(value, dtype) for value in arguments]
    given_named = {key: cast(value, dtype) for key, value in named.items()}
    exact = torch.as_tensor(
        function(
            *(cast(value, torch.float64) for value in given),
            **{key: cast(value, torch.float64) for key, value in given_named.items()},
        )
    )
    trained = given[0].requires_grad_(name not in ("compute_label_pair_similarity", "idf_penalty_weights"))
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = torch.as_tensor(function(*given, **given_named))
        assert found.dtype == torch.float32, autocast
        # sums of up to 2 million float32 numbers; scores of 1 divided by a temperature of .07
        torch.testing.assert_close(found.double(), exact.double(), rtol=1e-5, atol=1e-6)
        if trained.requires_grad:
            (gradient,) = torch.autograd.grad(found.sum(), trained)
            assert gradient.isfinite().all(), autocast
            assert gradient.any(), autocast


# What is computed once of a training set or a corpus knows no batch.
LOSSES = [
    name
    for name in functional.__all__
    if name not in ("compute_label_pair_similarity", "cosent", "idf_penalty_weights", "word_weights")
]


@pytest.mark.parametrize("name", LOSSES)
def test_an_empty_batch_is_zero_and_connected(name: str) -> None:
    """The last batch of a rank may be empty: its mean is 0 and not NaN, and backward must run through it."""
    arguments, named = CASES[name](0)
    learned = {"info_nce": 2, "hcl": 2, "triplet_margin": 3}.get(name, 1)  # columns that get a gradient
    columns = [column.requires_grad_() for column in arguments[:learned]]
    loss = getattr(functional, name)(*arguments, **named)
    loss.backward()
    assert loss.item() == 0
    assert all(column.grad.shape == column.shape for column in columns)
