"""A teacher's scores of listed (query, document) pairs: batched, sorted by length, cached and resumable.

The teacher may be a `CrossEncoder`, a `SparseEncoder`, a dense `SentenceTransformer` or a
`MultiVectorEncoder`; its own files say which it is. Scores are written in blocks as they are computed, so a
killed run loses one block at most, and the next run with the same teacher goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from lexforge.common.progress import Progress
from lexforge.common.types import DataError, TextKind
from lexforge.data.columns import ANCHOR, LABEL, text_columns, validate_columns
from lexforge.data.retrieval_data import RetrievalData
from lexforge.storage.blocks import BlockCache, hash_keys
from lexforge.storage.files import cache_folder
from lexforge.teachers.bge_m3 import BGEM3Scorer, ScoreWeights
from lexforge.teachers.scorer import ApartScorer, Pair, PairScorer

if TYPE_CHECKING:
    from datasets import Dataset
    from sentence_transformers import (
        CrossEncoder,
        MultiVectorEncoder,
        SentenceTransformer,
        SparseEncoder,
    )

FORMAT = "lexforge-pair-scores"


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
        self.name = fingerprint(model)

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
        import torch

        from lexforge.models.prompts import encode_kind

        options = {"batch_size": self._batch_size, "convert_to_tensor": True, "show_progress_bar": False}
        vectors = encode_kind(self._model, texts, kind, **options)
        if not isinstance(vectors, torch.Tensor):
            raise DataError(f"the teacher must return a tensor; received {type(vectors).__name__}")
        vectors = vectors.detach().cpu()
        if vectors.is_sparse:
            vectors = vectors.coalesce().float()
            rows, columns = vectors.indices().numpy()
            shape = (vectors.shape[0], vectors.shape[1])
            matrix = sp.csr_matrix((vectors.values().numpy(), (rows, columns)), shape=shape)
        else:
            matrix = sp.csr_matrix(vectors.float().numpy())
        if self._similarity == "cosine":
            norms = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1))).ravel()  # [N]
            matrix = sp.csr_matrix(sp.diags(1 / np.maximum(norms, 1e-12)) @ matrix)
        return matrix


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
        self._model, self._batch_size = model, batch_size
        self.name = fingerprint(model)

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
        encode = self._model.encode_query if kind == "query" else self._model.encode_document
        return encode(texts, batch_size=self._batch_size, show_progress_bar=False)


def load_scorer(
    name: str,
    *,
    batch_size: int = 32,
    max_seq_length: int | None = None,
    device: str | None = None,
    m3_weights: ScoreWeights | None = None,
) -> CrossEncoderScorer | EncoderScorer | MultiVectorScorer | BGEM3Scorer:
    """Load a teacher of pairs as what its files say it is.

    Unlike `load_teacher` it takes settings, and a dense model scores pairs by its own similarity here, in
    full precision.

    Args:
        name: A folder or a hub name: a `CrossEncoder` or a bare sequence classifier, a `SparseEncoder` or a
            bare masked language model (which is a SPLADE encoder), a dense `SentenceTransformer`, or a
            `MultiVectorEncoder` (sentence-transformers 6).
        batch_size: The number of pairs or texts per forward pass.
        max_seq_length: Texts are cut after this many tokens; None keeps what the model was saved with.
        device: Where the model is put; None leaves the choice to sentence-transformers.
        m3_weights: Weights of the three scores of BGE-M3 (`BGEM3Scorer`); None takes the model as what its
            own files say, which is a dense one for `BAAI/bge-m3`.

    Returns:
        The scorer.

    Raises:
        ValueError: If `batch_size` is below 1.
        DataError: If the model cannot be loaded, if it is a bare transformer of another kind (whose mean over
            tokens would be no teacher), if it gives more than one score per pair, or if three scores are
            weighed of a model that has not the heads of BGE-M3.
    """
    from sentence_transformers import CrossEncoder

    from lexforge.models.load import load_encoder
    from lexforge.models.names import checked_name, model_type

    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; received {batch_size}")
    try:
        name = checked_name(name)
        found = model_type(name)
    except (FileNotFoundError, ValueError):  # nothing is there, or a file instead of a folder
        found = "unknown"
    if m3_weights is not None:
        return _load_m3(name, m3_weights, batch_size, max_seq_length, device)
    if found == "unknown":
        raise DataError(
            f"the teacher {name!r} is missing or a bare transformer; pass the folder or hub name of a "
            "CrossEncoder, a SparseEncoder, a SentenceTransformer, a MultiVectorEncoder, a bare sequence "
            "classifier with one output or a bare masked language model"
        )
    try:
        if found == "multi-vector":
            from sentence_transformers import MultiVectorEncoder

            late = MultiVectorEncoder(name, device=device)
            if max_seq_length is not None:
                late.max_seq_length = max_seq_length
            return MultiVectorScorer(late, batch_size)
        if found != "cross-encoder":
            return EncoderScorer(load_encoder(name, max_seq_length, device), batch_size)
        model = CrossEncoder(name, device=device, max_length=max_seq_length)
    except (OSError, ValueError) as error:
        raise DataError(f"the teacher {name!r} cannot be loaded: {error}") from error
    return CrossEncoderScorer(model, batch_size)


def _load_m3(
    name: str, weights: ScoreWeights, batch_size: int, max_seq_length: int | None, device: str | None
) -> BGEM3Scorer:
    from lexforge.models.splade import build_splade

    try:
        model = build_splade(name, max_seq_length=max_seq_length, device=device)
    except (OSError, ValueError) as error:
        raise DataError(f"the teacher {name!r} cannot be loaded: {error}") from error
    return BGEM3Scorer(model, weights, batch_size)


def score_pairs(
    scorer: PairScorer,
    pairs: Iterable[Pair],
    folder: str | Path | None = None,
    *,
    block_pairs: int = 1024,
) -> dict[Pair, float]:
    """Score pairs that the cache does not hold yet, with progress, and return the scores of all.

    Args:
        scorer: The teacher.
        pairs: Texts of queries and documents; repeats are scored once.
        folder: The folder of the cache, which may be that of an earlier or a killed run. None takes a folder
            with the teacher's name in the user's cache.
        block_pairs: The number of pairs that are scored and written at a time, which is what a killed run
            can lose.

    Returns:
        Pair -> score, float32 as a Python float.

    Raises:
        ValueError: If there is no pair, or if `block_pairs` is below 1.
        DataError: If the folder holds something else, the cache of another teacher or a broken block, or if
            the teacher returns a wrong number of scores or one that is not finite.
    """
    if block_pairs < 1:
        raise ValueError(f"block_pairs must be at least 1; received {block_pairs}")
    wanted = list(dict.fromkeys(pairs))
    if not wanted:
        raise ValueError("received no pair to score")
    place = cache_folder() / "pair-scores" / scorer.name if folder is None else Path(folder)
    cache = BlockCache(place, FORMAT, np.float32)
    cache.check_teacher(scorer.name)
    keys = hash_keys(_key(pair) for pair in wanted)  # [N]
    # The longest pairs come first: they take the most memory, so a batch that is too large fails at once.
    # Pairs of one document stand together, because equal texts have equal lengths.
    missing = np.flatnonzero(~cache.known(keys))
    order = sorted(missing.tolist(), key=lambda row: (-scorer.length(wanted[row]), wanted[row][1]))
    if order:
        cache.remove_leftovers()
    with Progress(len(order), "teacher scores", "pairs", show=bool(order)) as progress:
        for start in range(0, len(order), block_pairs):
            rows = order[start : start + block_pairs]
            block = [wanted[row] for row in rows]
            cache.append(scorer.name, keys[rows], _checked(scorer.score(block), block)[:, None])
            progress.update(len(rows))
    return dict(zip(wanted, cache.rows(keys)[:, 0].tolist(), strict=True))


def row_pairs(rows: Iterable[Mapping[str, Any]] | Dataset) -> list[Pair]:
    """List the (anchor, document) pairs of training rows, row by row, the positive first."""
    return [(row[ANCHOR], row[column]) for row in rows for column in text_columns(row) if column != ANCHOR]


def label_rows(
    rows: Sequence[Mapping[str, Any]] | Dataset, scores: Mapping[Pair, float]
) -> list[dict[str, Any]]:
    """Write a teacher's scores into training rows.

    Args:
        rows: Rows under the column contract, such as those of `lexforge mine`; a `label` that they
            have is replaced.
        scores: (anchor, document) -> score, of all pairs of the rows.

    Returns:
        The rows with `label`: 1 + n floats, the positive's score first.

    Raises:
        DataError: If the rows break the contract.
        KeyError: If a pair has no score.
    """
    documents = validate_columns(rows)[1:]
    return [{**row, LABEL: [scores[row[ANCHOR], row[column]] for column in documents]} for row in rows]


def listed_pairs(
    data: RetrievalData, split: str, run: Mapping[str, Mapping[str, float]] | None, depth: int
) -> list[tuple[str, str]]:
    """List the pairs of ids that training on a split may need: judged documents and a ranking's best.

    Args:
        data: The retrieval set.
        split: The split whose queries and judgements are listed.
        run: Query id -> document id -> score; None lists the judged documents only.
        depth: The number of best documents of each query of the run.

    Returns:
        (query id, document id), each pair once, query by query.

    Raises:
        ValueError: If `depth` is below 1.
        DataError: If the run names an unknown document.
    """
    if depth < 1:
        raise ValueError(f"depth must be at least 1; received {depth}")
    pairs = []
    for query, grades in data.split(split).items():
        found = {} if run is None else run.get(query, {})
        ranked = sorted(found, key=lambda document: -found[document])[:depth]
        for document in dict.fromkeys([*grades, *ranked]):
            if document not in data.corpus:
                raise DataError(f"the run names document {document!r}, which {data.name} lacks")
            pairs.append((query, document))
    return pairs


def _key(pair: Pair) -> bytes:
    """Return the bytes of a pair; the length of the query says where the document begins."""
    query, document = (text.encode("utf-8", "surrogatepass") for text in pair)
    return len(query).to_bytes(8, "little") + query + document


def _checked(scores: NDArray[np.floating], pairs: Sequence[Pair]) -> NDArray[np.float32]:
    """Return a teacher's scores as `[N]` float32, or raise an error that names the first wrong pair."""
    array = np.asarray(scores)
    if array.shape != (len(pairs),):
        raise DataError(f"the teacher must return [{len(pairs)}] scores; received shape {array.shape}")
    with np.errstate(over="ignore"):  # what overflows is reported below
        narrow = array.astype(np.float32)
    finite = np.isfinite(narrow)
    if not finite.all():
        raise DataError(f"the teacher's score is not finite for {pairs[int(np.argmin(finite))]!r}")
    return narrow
