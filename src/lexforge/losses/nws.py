"""NWS: multi-label contrast against keys, a queue and label prototypes (docs/losses.md, section 14)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, get_args

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lexforge.common.similarity import agreed_similarity
from lexforge.losses.base import EmbeddingLoss, Features
from lexforge.losses.gradient_cache import MiniBatchSize
from lexforge.losses.label_similarity import check_label_similarity, check_multi_hot
from lexforge.losses.precision import in_float32
from lexforge.losses.queue import KeyQueue
from lexforge.losses.reference_weights import Aggregate, reference_weights
from lexforge.losses.similarity import unit_rows
from lexforge.models.momentum import MomentumEncoder, is_training
from lexforge.models.structure import embedding_dimension
from lexforge.settings import check_positive

# A section of references, keys or queue: vectors [R, F] without gradient, and their labels [R, L].
Section = tuple[Tensor, Tensor]


@in_float32
def nws(
    queries: Tensor,
    query_labels: Tensor,
    prototypes: Tensor | None,
    label_similarity: NDArray | Tensor,
    *,
    keys: Tensor | None = None,
    key_labels: Tensor | None = None,
    queue: Tensor | None = None,
    queue_labels: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    temperature: float = 0.07,
    aggregate: Aggregate,
    eps: float = 1e-8,
) -> Tensor:
    """Pull a text towards references that share a label with it, away from those that share none.

    For query i with labels y_i, over the references r (keys, queue, prototypes) with s_ir their cosine:

        L = mean over i of  1 / (|y_i| + eps) * sum over positives r of
              -w_ir * log( exp(s_ir / T) / (sum over negatives u of b_u a_iu exp(s_iu / T) + eps) )

    - A key or queue entry is a positive if it shares a label with the query, prototype c if the query has
      label c; all others are negatives. The denominator holds negatives alone (decoupled contrastive
      learning), so the loss can fall below 0.
    - A negative weighs `beta * (1 - sim(y_i, y_u))` if it is a key or in the queue, 1 if it is a prototype;
      sim is the mean or the maximum of `label_similarity` over the pairs of a label of each.
    - A positive weighs `w_ik = sum over c of M_ikc / (D_ic + eps)`, with `M_ikc = alpha y_ic y_kc / |y_i or
      y_k|` and `D_ic = sum over k of M_ikc + (1 - alpha / |y_i|) y_ic`; prototype c weighs `y_ic / (D_ic +
      eps)`. So every label counts about the same, however many references carry it. With the query's own text
      among the keys D_ic is at least 1; without it a label that no reference carries has D_ic = 1 - alpha /
      |y_i|. Take alpha below 1 there, or the weight nears 1 / eps; without any keys it must be.

    A query without a label, or without a negative whose weight is above 0, adds 0. Where D_ic + eps is 0,
    label c has no weight. The sums are taken in log space, in float32 at least and outside autocast, so that
    no temperature overflows. No tensor of more than two dimensions is made; `reference_weights` says how.

    Args:
        queries: `[B, F]` float; normalised here, as all vectors below.
        query_labels: `[B, L]` of 0 and 1, any dtype.
        prototypes: `[L, F]` float, one per label; None leaves them out.
        label_similarity: `[L, L]` float in [0, 1], symmetric, as from `compute_label_pair_similarity`; zeros
            weigh all negatives alike.
        keys: `[K, F]` float, or None; no gradient flows into it.
        key_labels: `[K, L]` of 0 and 1, with `keys`.
        queue: `[Q, F]` float, or None; no gradient flows into it.
        queue_labels: `[Q, L]` of 0 and 1, with `queue`.
        alpha: Weight of keys and queue among the positives, > 0; below 1 without keys.
        beta: Weight of keys and queue among the negatives, > 0.
        temperature: T, > 0.
        aggregate: "mean" or "max"; there is no default.
        eps: >= 0; 0 is the exact form.

    Returns:
        0-dim float; 0 for an empty batch, connected to the graph.

    Raises:
        ValueError: If shapes disagree, a label is neither 0 nor 1, the similarity is not symmetric or not in
            [0, 1], there is no reference, a number is out of range or the aggregate unknown.

    Source: docs/losses.md, section 14; the weights w are those of MSC (Audibert et al. 2024, arXiv
    2404.08720), the denominator that of DCL (Yeh et al. 2022, arXiv 2110.06848).
    """
    # Where there is no reference at all, that is what is told.
    with_keys = keys is not None or (queue is None and prototypes is None)
    _check_settings(alpha, beta, temperature, aggregate, eps, with_keys=with_keys)
    if queries.dim() != 2:
        raise ValueError(f"queries must be [B, F]; received {tuple(queries.shape)}")
    label_similarity = torch.as_tensor(label_similarity)
    check_label_similarity(label_similarity)
    width, label_count = queries.shape[1], len(label_similarity)
    check_multi_hot(query_labels, "query_labels", (len(queries), label_count))
    if prototypes is not None and tuple(prototypes.shape) != (label_count, width):
        raise ValueError(
            f"prototypes must be [{label_count}, {width}], one per label; received {tuple(prototypes.shape)}"
        )
    sections = []
    for name, vectors, labels in (("key", keys, key_labels), ("queue", queue, queue_labels)):
        plural = "keys" if name == "key" else "queue"
        if (vectors is None) != (labels is None):
            raise ValueError(f"{plural} and {name}_labels belong together; received only one of them")
        if vectors is None or labels is None:
            continue
        if vectors.dim() != 2 or vectors.shape[1] != width:
            raise ValueError(f"{plural} must be [N, {width}]; received {tuple(vectors.shape)}")
        check_multi_hot(labels, f"{name}_labels", (len(vectors), label_count))
        sections.append((unit_rows(vectors.detach()), labels))
    return _nws_of_unit_vectors(
        unit_rows(queries),
        query_labels,
        None if prototypes is None else unit_rows(prototypes),
        label_similarity,
        sections,
        alpha=alpha,
        beta=beta,
        temperature=temperature,
        aggregate=aggregate,
        eps=eps,
    )


def _check_settings(
    alpha: float, beta: float, temperature: float, aggregate: str, eps: float, *, with_keys: bool
) -> None:
    """Refuse numbers out of range and an unknown aggregate; without keys alpha must be below 1."""
    check_positive(alpha=alpha, beta=beta, temperature=temperature)
    if not with_keys and alpha >= 1:
        raise ValueError(
            "without keys alpha must be below 1, for a prototype weighs up to 1 / (1 - alpha); received "
            f"{alpha}"
        )
    if not 0 <= eps < math.inf:
        raise ValueError(f"eps must be finite and >= 0; received {eps}")
    if aggregate not in get_args(Aggregate):
        raise ValueError(f"aggregate must be one of {get_args(Aggregate)}; received {aggregate!r}")


def _nws_of_unit_vectors(
    queries: Tensor,
    query_labels: Tensor,
    prototypes: Tensor | None,
    label_similarity: Tensor,
    sections: Sequence[Section],
    *,
    alpha: float,
    beta: float,
    temperature: float,
    aggregate: Aggregate,
    eps: float,
) -> Tensor:
    """Compute `nws` on vectors of length 1, outside autocast; the sections are the keys, then the queue."""
    if prototypes is None and not sections:
        raise ValueError("no reference: give keys, a queue or prototypes")
    with torch.no_grad():
        positive, log_negative = reference_weights(
            query_labels.to(queries.dtype),
            [labels for _, labels in sections],
            prototypes is not None,
            label_similarity.to(queries),
            alpha=alpha,
            beta=beta,
            aggregate=aggregate,
            eps=eps,
        )
        labels_per_query = query_labels.sum(dim=1, dtype=queries.dtype)
        counts = (labels_per_query > 0) & (log_negative.amax(dim=1) > -math.inf)
        log_negative[~counts] = 0.0  # The row is dropped below; any finite number keeps its sum finite.
    references = [vectors for vectors, _ in sections] + ([] if prototypes is None else [prototypes])
    scores = torch.cat([queries @ vectors.to(queries).T for vectors in references], dim=1) / temperature
    log_denominator = torch.logsumexp(scores + log_negative, dim=1)
    if eps:
        log_denominator = torch.logaddexp(log_denominator, scores.new_tensor(math.log(eps)))
    per_query = positive.sum(dim=1) * log_denominator - torch.linalg.vecdot(positive, scores)
    per_query = per_query / (labels_per_query + eps).clamp_min(1e-30)
    return torch.where(counts, per_query, 0.0).sum() / max(len(queries), 1)


class NWSLoss(EmbeddingLoss):
    """Multi-label contrast: texts that share a label come together, with the weights that `nws` states.

        L = mean over i of 1 / |y_i| * sum over positives r of
              -w_ir * log( exp(s_ir / T) / sum over negatives u of b_u (1 - sim(y_i, y_u)) exp(s_iu / T) )

    The data has one or two text columns and one label column of multi-hot lists (`lexforge.data.multi_hot`
    makes them of names). The first column is the query, which the model encodes. The references are the keys,
    a queue of the keys of earlier batches with their labels, and one trainable prototype per label. The keys
    are the second column or, where there is none, the same text, encoded without gradient by a moving average
    of the model; they are those of all ranks. A query's own key is one of its positives, as in MoCo. All
    ranks hold the same queue.

    In evaluation keys come from the moving average and further references from the queue, both as they
    stand; nothing changes. Where another loss hands over embeddings alone
    (`compute_loss_from_embeddings`), those of the last column, detached, stand in for the keys, and nothing
    enters the queue.

    When to use it: texts with sets of labels, as topics or emotions, where embeddings are wanted that
    retrieve by label or feed a classifier of rare labels. For the classifier alone, binary cross-entropy is
    simpler; `recipes/nws_multilabel.py` compares the two.

    What to tune: the learning rate of `prototypes` (they start at random, so give them 30 to 100 times the
    encoder's, `learning_rate_mapping={"prototypes": 1e-3}` in the training arguments), `temperature` (.05 to
    .2), `queue_size` (some thousands; rare labels need more), and then `alpha` and `beta`. Labels that often
    occur together repel each other less with `compute_label_pair_similarity` than with a matrix of zeros.

    The state (prototypes, queue, moving average) is saved and restored by `lexforge.runs.RunStateCallback`.

    Args:
        model: The `SentenceTransformer` (or, with a short queue, `SparseEncoder`) to train. The similarity is
            the cosine by definition: a model that is searched by dot product is refused.
        label_similarity: `[L, L]` float in [0, 1], symmetric; L is the number of labels.
        aggregate: "mean" or "max" over the label pairs of a query and a negative; there is no default.
        alpha: Weight of keys and queue among the positives, > 0; below 1 without keys.
        beta: Weight of keys and queue among the negatives, > 0.
        temperature: T, > 0.
        queue_size: Q, at least the batch of all ranks; 0 for no queue.
        momentum: Share of the moving average that an optimizer step keeps, in [0, 1).
        use_keys: Whether the keys of the batch are references; the queue takes them in any case.
        use_prototypes: Whether there are prototypes.
        eps: As in `nws`.
        mini_batch_size: Rows that are encoded at once, "auto" or None; see `EmbeddingLoss`.

    Attributes:
        prototypes: `[L, D]` parameter, or None; their directions count, not their lengths.

    Raises:
        ValueError: If a number, the label similarity or the aggregate is out of range, there is no reference
            at all, the model is searched by dot product, the labels of a batch are missing, of another width
            or not 0 and 1, a batch has more text columns than are read, or the queue is shorter than the
            batch of all ranks.

    Source: docs/losses.md, section 14; He et al. 2020 (arXiv 1911.05722) for keys and queue.
    """

    once_per_batch = True
    label_similarity: Tensor

    def __init__(
        self,
        model: nn.Module,
        label_similarity: NDArray | Tensor,
        *,
        aggregate: Aggregate,
        alpha: float = 1.0,
        beta: float = 1.0,
        temperature: float = 0.07,
        queue_size: int = 4096,
        momentum: float = 0.999,
        use_keys: bool = True,
        use_prototypes: bool = True,
        eps: float = 1e-8,
        mini_batch_size: MiniBatchSize = None,
    ) -> None:
        super().__init__(model, mini_batch_size, gather_across_devices=True)
        if not (use_keys or use_prototypes):
            raise ValueError(
                "NWSLoss needs keys or prototypes, because the queue is empty at the first batch; received "
                "use_keys=False and use_prototypes=False"
            )
        _check_settings(alpha, beta, temperature, aggregate, eps, with_keys=use_keys)
        self.similarity = agreed_similarity(model, "cosine", loss="NWSLoss")
        similarity = torch.as_tensor(label_similarity, dtype=torch.float32)
        check_label_similarity(similarity)
        self.register_buffer("label_similarity", similarity, persistent=False)
        self.settings: dict[str, Any] = {
            "alpha": alpha,
            "beta": beta,
            "temperature": temperature,
            "aggregate": aggregate,
            "eps": eps,
        }
        self.use_keys = use_keys
        dimension, labels = embedding_dimension(model), len(similarity)
        start = unit_rows(torch.randn(labels, dimension))
        self.prototypes = nn.Parameter(start) if use_prototypes else None
        self.queue = KeyQueue(queue_size, dimension, labels) if queue_size else None
        moving = bool(use_keys or queue_size)
        self.momentum_encoder = MomentumEncoder(model, momentum) if moving else None

    def embed(self, inputs: list[Features]) -> list[Tensor]:
        """Encode the first column by the model, the last one by its moving average if keys are needed.

        Args:
            inputs: One or two columns.

        Returns:
            The queries and, with keys or a queue, the keys without gradient, `[B, D]` float each.
        """
        if len(inputs) > (1 if self.momentum_encoder is None else 2):
            raise ValueError(
                f"NWSLoss reads one text column and, with keys or a queue, a second view of it as the key; "
                f"received {len(inputs)} text columns"
            )
        queries = super().embed([dict(inputs[0])])
        if self.momentum_encoder is None:
            return queries
        return [*queries, self.momentum_encoder.encode(self.model, inputs[-1])]

    def compute_loss(
        self, embeddings: list[Tensor], features: list[Features] | None, labels: Tensor | None
    ) -> Tensor:
        """Compute the loss and, in training, enqueue the keys; see `EmbeddingLoss.forward`.

        Args:
            embeddings: Queries and, as the last of two, keys; `[B, D]` float each.
            features: None where another loss encoded the columns.
            labels: `[B, L]` of 0 and 1.

        Returns:
            0-dim float.
        """
        if labels is None:
            raise ValueError("NWSLoss needs a label column of multi-hot lists; received none")
        queries = embeddings[0]
        check_multi_hot(labels, "labels", (len(queries), len(self.label_similarity)))
        keys = self._compared(unit_rows(embeddings[-1].detach()))
        key_labels = self._compared(labels.to(keys.dtype))
        sections: list[Section] = [(keys, key_labels)] if self.use_keys else []
        if self.queue is not None and len(self.queue):
            held, held_labels = self.queue.contents()
            assert held_labels is not None
            sections.append((held, held_labels))
        loss = _nws_of_unit_vectors(
            unit_rows(queries),
            labels,
            None if self.prototypes is None else unit_rows(self.prototypes),
            self.label_similarity,
            sections,
            **self.settings,
        )
        if self.queue is not None and features is not None and is_training(self.model):
            self.queue.enqueue(keys, key_labels)
        return loss

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings, for the model card."""
        encoder = self.momentum_encoder
        own = {
            "label_count": len(self.label_similarity),
            "queue_size": 0 if self.queue is None else len(self.queue.keys),
            "momentum": None if encoder is None else encoder.momentum,
            "use_keys": self.use_keys,
            "use_prototypes": self.prototypes is not None,
        }
        return self.settings | own | super().get_config_dict()

    # The papers that the loss builds on, for the model card.
    citation = """
@inproceedings{audibert2024exploring,
    title={Exploring Contrastive Learning for Long-Tailed Multi-Label Text Classification},
    author={Audibert, Alexandre and Gauffre, Aur{\\'e}lien and Amini, Massih-Reza},
    booktitle={Machine Learning and Knowledge Discovery in Databases (ECML PKDD)},
    year={2024}
}
@inproceedings{yeh2022decoupled,
    title={Decoupled Contrastive Learning},
    author={Yeh, Chun-Hsiao and Hong, Cheng-Yao and Hsu, Yen-Chi and Liu, Tyng-Luh and others},
    booktitle={European Conference on Computer Vision},
    year={2022}
}
"""
