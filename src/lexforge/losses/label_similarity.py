"""How similar two labels are by the texts that carry both (docs/losses.md, section 14)."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from lexforge.losses.precision import in_float32

PairMethod = Literal["npmi", "jaccard"]
_JACCARD_EPS = 1e-10  # Keeps the quotient of two labels that no text carries at 0.


@in_float32
def compute_label_pair_similarity(labels: NDArray | Tensor, method: PairMethod) -> NDArray[np.float32]:
    """Measure the similarity of every pair of labels over a training set, in [0, 1].

    With p_i the share of texts that carry label i and p_ij the share that carry both:

    - "npmi": `(NPMI + 1) / 2` with `NPMI = log(p_ij / (p_i p_j)) / -log p_ij`; 0 where p_ij is 0 (then p_i or
      p_j may be 0 too), 1 where p_ij is 1. Independent labels get 0.5.
    - "jaccard": texts that carry both over texts that carry either; 0 where there are none.

    Args:
        labels: `[N, L]` of 0 and 1 in any dtype, N texts, at least one.
        method: "npmi" or "jaccard"; there is no default.

    Returns:
        `[L, L]` float32, symmetric, with 1 on the diagonal.

    Raises:
        ValueError: If the labels are not a non-empty matrix of 0 and 1, or the method is unknown.

    Source: docs/losses.md, section 14; NPMI after Bouma 2009, "Normalized (Pointwise) Mutual Information in
    Collocation Extraction".
    """
    if method not in get_args(PairMethod):
        raise ValueError(f"method must be one of {get_args(PairMethod)}; received {method!r}")
    multi_hot = torch.as_tensor(labels)
    check_multi_hot(multi_hot, "labels")
    if not len(multi_hot):
        raise ValueError(f"labels hold no text: their shape is {tuple(multi_hot.shape)}")
    carried = sparse.csr_array(multi_hot.cpu().numpy().astype(np.int64))
    both = (carried.T @ carried).toarray().astype(np.float64)  # [L, L], exact counts
    alone = both.diagonal().copy()
    if method == "jaccard":
        similarity = both / (alone[:, None] + alone - both + _JACCARD_EPS)
    else:
        joint, single = both / len(multi_hot), alone / len(multi_hot)
        expected = single[:, None] * single
        some = (joint > 0) & (joint < 1)
        npmi = np.where(joint < 1, -1.0, 1.0)
        npmi[some] = np.log(joint[some] / expected[some]) / -np.log(joint[some])
        similarity = (npmi + 1) / 2
    np.fill_diagonal(similarity, 1.0)
    similarity = (similarity + similarity.T) / 2
    return similarity.clip(0, 1).astype(np.float32)


def check_multi_hot(labels: Tensor, name: str, shape: tuple[int, int] | None = None) -> None:
    """Refuse labels that are not a matrix of 0 and 1.

    Args:
        labels: What was received.
        name: Name of the argument, for the message.
        shape: Number of rows and of labels that it must have; None allows any.

    Raises:
        ValueError: If the shape is wrong or a value is neither 0 nor 1; the message names its place.
    """
    if labels.dim() != 2 or (shape is not None and tuple(labels.shape) != shape):
        wanted = "[N, L]" if shape is None else f"[{shape[0]}, {shape[1]}]"
        raise ValueError(f"{name} must be {wanted}, one column per label; received {tuple(labels.shape)}")
    if labels.dtype == torch.bool:
        return
    wrong = (labels != 0) & (labels != 1)
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{name} must hold only 0 and 1; row {row} holds {labels[row, column].item()} for label {column}"
        )


def check_label_similarity(similarity: Tensor) -> None:
    """Refuse a label similarity that is not a symmetric matrix with values in [0, 1].

    The diagonal may hold any value in [0, 1]: references that share a label with a query are never its
    negatives, so it is not read. A matrix of zeros therefore gives all negatives the same weight.

    Args:
        similarity: What was received.

    Raises:
        ValueError: If the shape is wrong, or a value is out of range or not symmetric; the message names its
            place.
    """
    if similarity.dim() != 2 or similarity.shape[0] != similarity.shape[1] or not len(similarity):
        raise ValueError(f"label_similarity must be [L, L]; received {tuple(similarity.shape)}")
    outside = ~((similarity >= 0) & (similarity <= 1))
    if outside.any():
        row, column = outside.nonzero()[0].tolist()
        raise ValueError(
            "label_similarity must lie in [0, 1]; "
            f"labels {row} and {column} have {similarity[row, column].item()}"
        )
    apart = (similarity - similarity.T).abs() > 1e-6
    if apart.any():
        row, column = apart.nonzero()[0].tolist()
        raise ValueError(
            f"label_similarity must be symmetric; [{row}, {column}] is {similarity[row, column].item()} and "
            f"[{column}, {row}] is {similarity[column, row].item()}"
        )
