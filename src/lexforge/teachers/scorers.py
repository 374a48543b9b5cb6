"""What scores pairs of texts: a `CrossEncoder`, an encoder of texts, a `MultiVectorEncoder`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from lexforge.common.types import DataError, TextKind

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder

Pair: TypeAlias = tuple[str, str]
"""A query's text and a document's text."""


@runtime_checkable
class PairScorer(Protocol):
    """Anything that scores pairs of texts.

    `name` is a fingerprint: two teachers that give different scores have different names.
    """

    name: str

    def score(self, pairs: Sequence[Pair]) -> NDArray[np.floating]:
        """Score N pairs: `[N]` float, higher for a more relevant document."""
        ...

    def length(self, pair: Pair) -> int:
        """Return a number by which pairs are sorted, so that those of one batch take equally long."""
        ...


class ApartScorer(ABC):
    """A scorer that encodes queries and documents apart.

    What it encodes of a query is kept in memory, because a query occurs with many documents.
    """

    def __init__(self) -> None:
        self._queries: dict[str, Any] = {}  # text -> what _encode gives of it

    def length(self, pair: Pair) -> int:
        """Return the characters of the document; queries are encoded apart."""
        return len(pair[1])

    def _encoded_queries(self, pairs: Sequence[Pair]) -> list[Any]:
        """Return what `_encode` gives of the query of each pair; each distinct query is encoded once."""
        new = [query for query in dict.fromkeys(query for query, _ in pairs) if query not in self._queries]
        if new:
            self._queries |= dict(zip(new, self._encode(new, "query"), strict=True))
        return [self._queries[query] for query, _ in pairs]

    @abstractmethod
    def _encode(self, texts: list[str], kind: TextKind) -> Iterable[Any]:
        """Encode texts of one kind, at least one."""


class CrossEncoderScorer:
    """Scores pairs with a `CrossEncoder`; the score is the raw logit, without the model's activation.

    Logits are compared with temperatures and margins like any other score, whereas a sigmoid would press all
    good documents to nearly 1.

    Args:
        model: A cross-encoder with one output.
        batch_size: The number of pairs per forward pass.

    Raises:
        DataError: If the model has more than one output.
    """

    def __init__(self, model: CrossEncoder, batch_size: int = 32) -> None:
        from lexforge.models.fingerprint import fingerprint

        if model.num_labels != 1:
            raise DataError(f"a teacher must give one score per pair; received {model.num_labels} outputs")
        self._model, self._batch_size = model, batch_size
        self.name = fingerprint(model)

    def score(self, pairs: Sequence[Pair]) -> NDArray[np.floating]:
        """Score N pairs: `[N]` float32 logits."""
        import torch

        scores = self._model.predict(
            list(pairs),
            batch_size=self._batch_size,
            activation_fn=torch.nn.Identity(),
            show_progress_bar=False,
        )
        return np.asarray(scores, dtype=np.float32).reshape(len(pairs))

    def length(self, pair: Pair) -> int:
        """Return the characters of both texts, which pass through the model together."""
        return len(pair[0]) + len(pair[1])


class EncoderScorer(ApartScorer):
    """Scores pairs by the vectors of a sparse or dense encoder and the similarity that the model carries.

    Queries and documents get their own prompts or routes.

    Args:
        model: A `SparseEncoder` or a dense `SentenceTransformer`.
        batch_size: The number of texts per forward pass.

    Raises:
        ValueError: If the model's similarity is neither cosine nor dot product.
    """

    def __init__(self, model: SparseEncoder | SentenceTransformer, batch_size: int = 32) -> None:
        from lexforge.models.fingerprint import fingerprint
        from lexforge.models.load import check_encoder

        super().__init__()
        self._model, self._batch_size = model, batch_size
        self._similarity = check_encoder(model)
        self.name = f"{fingerprint(model)}-{self._similarity}"  # the fingerprint leaves the similarity out

    def score(self, pairs: Sequence[Pair]) -> NDArray[np.floating]:
        """Score N pairs: `[N]` float32 similarities."""
        queries = sp.vstack(self._encoded_queries(pairs), format="csr")  # [N, D]
        # Each distinct document is encoded once, however many queries it is paired with.
        distinct = list(dict.fromkeys(document for _, document in pairs))
        row_of = {document: row for row, document in enumerate(distinct)}
        vectors = self._encode(distinct, "document")
        documents = vectors[[row_of[document] for _, document in pairs]]  # [N, D]
        return np.asarray(queries.multiply(documents).sum(axis=1), dtype=np.float32).reshape(len(pairs))

    def _encode(self, texts: list[str], kind: TextKind) -> sp.csr_matrix:
        """Encode texts of one kind as `[N, D]`; dense vectors become full rows of the sparse format."""
        from sklearn.preprocessing import normalize

        from lexforge.corpus import encode

        vectors = sp.csr_matrix(encode(self._model, texts, kind, batch_size=self._batch_size))
        return normalize(vectors) if self._similarity == "cosine" else vectors


class MultiVectorScorer(ApartScorer):
    """Scores pairs by a model with several vectors per text, by late interaction.

    The score is the model's own similarity: for each vector of the query the largest similarity to one of the
    document, summed (MaxSim of ColBERT) or averaged.

    Args:
        model: A `MultiVectorEncoder`.
        batch_size: The number of texts per forward pass.

    Source: Khattab and Zaharia, "ColBERT" (arXiv 2004.12832), equation 3.
    """

    def __init__(self, model: MultiVectorEncoder, batch_size: int = 32) -> None:
        from lexforge.models.fingerprint import fingerprint

        super().__init__()
        self._model: Any = model
        self._batch_size = batch_size
        self.name = f"{fingerprint(model)}-{model.similarity_fn_name}"

    def score(self, pairs: Sequence[Pair]) -> NDArray[np.floating]:
        """Score N pairs: `[N]` float32 similarities."""
        distinct = list(dict.fromkeys(document for _, document in pairs))
        documents = dict(zip(distinct, self._encode(distinct, "document"), strict=True))
        scores = self._model.similarity_pairwise(
            self._encoded_queries(pairs), [documents[document] for _, document in pairs]
        )
        return np.asarray(scores.detach().float().cpu(), dtype=np.float32)

    def _encode(self, texts: list[str], kind: TextKind) -> Any:
        """Encode texts of one kind as `[L, D]` each."""
        from lexforge.models.prompts import encode_kind

        return encode_kind(self._model, texts, kind, batch_size=self._batch_size, show_progress_bar=False)
