"""Moving negatives: every few epochs the model in training mines the negatives of the training rows anew.

This follows ANCE (Xiong et al., "Approximate nearest neighbor negative contrastive learning for dense text
retrieval", arXiv 2007.00808), with two changes: the search is exact, and it runs between epochs instead of
in parallel with training.
"""

from __future__ import annotations

import base64
import logging
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.training_args import BatchSamplers
from torch.distributed.fsdp import FSDPModule
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from lexforge.common.ranks import from_first_rank, world_size
from lexforge.common.types import Embeddings
from lexforge.corpus import Vectors, encode, join_vectors
from lexforge.data import (
    NegativeMiner,
    NegativeRule,
    RetrievalData,
    mined_columns,
    rows_to_dataset,
    score_by_teacher,
)
from lexforge.data.columns import ANCHOR, POSITIVE
from lexforge.data.negatives import MinedRow
from lexforge.models.fingerprint import text_digest
from lexforge.models.load import check_encoder
from lexforge.retrieval import build_exact

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


class MovingNegatives(TrainerCallback, ExportableState):
    """A training set whose negatives the model itself mines, and the callback that mines them.

        negatives = MovingNegatives(data, NegativeRule(per_row=1, last_rank=50))
        trainer = SpladeTrainer(model, loss, train_dataset=negatives.dataset, callbacks=[negatives], ...)

    At the beginning of epochs 0, n, 2n and so on, each rank encodes its share of the corpus and of the
    split's queries. Rank 0 then searches and mines, and all ranks take its rows. The number and the order of
    the rows never change. The negatives in use are part of `trainer_state.json` in each checkpoint: a resumed
    run continues with them, and mines again at the same epochs as a run that was never stopped.

    A distillation teacher must know every document of the corpus, because any of them may become a negative.

    Args:
        data: The retrieval set.
        rule: Which documents may be negatives; rows with too few of them are filled at random.
        every_epochs: Number of epochs from one mining to the next.
        split: The split to train on.
        teacher: Embeddings of the queries and of the corpus, for a rule with a `teacher_margin`.
        batch_size: Texts per forward pass.
        block_queries: Queries per search, which bounds the memory of the rankings.

    Raises:
        ValueError: If a number is below 1, if the rule drops short rows, or if only one of a teacher and a
            `teacher_margin` is given. When training begins: if the sampler or the workers would not see the
            rows change, if the model is sharded by FSDP2, if the trainer has a second callback of this class,
            or if the checkpoint is of other rows.
        DataError: If a query has no positive, or the corpus is too small to fill a row.
    """

    def __init__(
        self,
        data: RetrievalData,
        rule: NegativeRule,
        *,
        every_epochs: int = 1,
        split: str = "train",
        teacher: Embeddings | None = None,
        batch_size: int = 32,
        block_queries: int = 4096,
    ) -> None:
        for name, value in (
            ("every_epochs", every_epochs),
            ("batch_size", batch_size),
            ("block_queries", block_queries),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1; received {value}")
        if rule.shortage != "random":
            raise ValueError("the number of rows must stay: the rule needs shortage='random'")
        if (rule.teacher_margin is None) != (teacher is None):
            raise ValueError(
                "a teacher is needed for a rule with a teacher_margin, and for no other rule; received "
                f"teacher_margin={rule.teacher_margin} and teacher={teacher!r}"
            )
        self.data = data
        self.every_epochs = every_epochs
        self.split = split
        self.teacher = teacher
        self.batch_size = batch_size
        self.block_queries = block_queries
        self.mined_epoch: int | None = None
        self._miner = NegativeMiner(data, rule, split)
        self._place = {document: place for place, document in enumerate(data.corpus)}
        at_random = NegativeMiner(data, replace(rule, teacher_margin=None), split)
        rows = at_random.mine({query: {} for query in self._miner.queries})
        self._texts = _NegativeTexts(list(data.corpus.values()), self._positions(rows))
        self._digest = text_digest([*data.corpus.values(), *(data.queries[row.query] for row in rows)])
        self.dataset = self._make_dataset(rows)

    def _make_dataset(self, rows: list[MinedRow]) -> Dataset:
        # Texts and judged documents of the rows; a negative column holds the row's number (_NegativeTexts).
        columns = mined_columns(self.data, [row._replace(negatives=()) for row in rows], self.split)
        numbered = [
            {name: row[name] for name in (ANCHOR, POSITIVE)}
            | dict.fromkeys(self._texts.columns, number)
            | row
            for number, row in enumerate(columns)
        ]
        dataset = rows_to_dataset(numbered)
        dataset.set_transform(self._texts)
        return dataset

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check the settings, and restore the negatives of the checkpoint that a run is resumed from."""
        if isinstance(kwargs.get("model"), FSDPModule):
            raise ValueError(
                "MovingNegatives lets the ranks encode different texts with the model in training, which "
                "FSDP2 does not allow; train with DistributedDataParallel (recipes/accelerate/multi_gpu.yaml)"
            )
        if getattr(args, "batch_sampler", None) == BatchSamplers.NO_DUPLICATES_HASHED:
            raise ValueError(
                "batch_sampler=no_duplicates_hashed hashes the rows once and does not see them change; use "
                "no_duplicates"
            )
        if args.dataloader_num_workers and args.dataloader_persistent_workers:
            raise ValueError(
                "dataloader_persistent_workers=True keeps the rows with which the workers were started; "
                "set it to False"
            )
        if args.restore_callback_states_from_checkpoint:
            raise ValueError(
                "restore_callback_states_from_checkpoint=True would build this callback anew, without its "
                "data; set it to False: the callback restores itself"
            )
        if isinstance(self._saved(state), list):
            raise ValueError("a trainer takes one MovingNegatives callback; this one has several")
        self.mined_epoch = None
        if state.global_step:
            self._restore(state)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Mine at the beginning of every `every_epochs`-th epoch."""
        batches = len(kwargs["train_dataloader"])
        steps = max(1, -(-batches // args.gradient_accumulation_steps))
        epoch = state.global_step // steps  # the Trainer counts the epochs of a resumed run this way
        if epoch % self.every_epochs == 0 and epoch != self.mined_epoch:
            before = self._texts.positions
            self._texts.positions = self._mine_on_all_ranks(kwargs["model"], epoch)
            self.mined_epoch = epoch
            changed = float((before != self._texts.positions).mean())
            logger.info("epoch %d: mined the negatives anew; %.1f %% of them changed", epoch, 100 * changed)

    def state(self) -> dict[str, Any]:
        """The state that a checkpoint keeps: the negatives, as positions in the corpus, and their epoch."""
        packed = zlib.compress(self._texts.positions.astype("<i4").tobytes())
        attributes = {
            "mined_epoch": self.mined_epoch,
            "rows": self._digest,
            "shape": list(self._texts.positions.shape),
            "positions": base64.b64encode(packed).decode("ascii"),
        }
        return {"args": {}, "attributes": attributes}

    def _saved(self, state: TrainerState) -> Any:
        callbacks: Any = state.stateful_callbacks  # by class; a list if a class has several
        return callbacks.get(type(self).__name__)

    def _restore(self, state: TrainerState) -> None:
        saved = self._saved(state)
        if saved is None:
            raise ValueError(f"the checkpoint of step {state.global_step} holds no state of MovingNegatives")
        attributes = saved["attributes"]
        if attributes["rows"] != self._digest or attributes["shape"] != list(self._texts.positions.shape):
            raise ValueError(
                f"the checkpoint of step {state.global_step} holds negatives of another corpus, of other "
                f"queries or another number of them per row: it has [rows, negatives] {attributes['shape']}, "
                f"and this run {list(self._texts.positions.shape)}"
            )
        packed = zlib.decompress(base64.b64decode(attributes["positions"]))
        self._texts.positions = np.frombuffer(packed, "<i4").reshape(attributes["shape"])
        self.mined_epoch = attributes["mined_epoch"]

    def _mine_on_all_ranks(self, model: BaseModel, epoch: int) -> NDArray[np.int32]:
        """All ranks encode, and rank 0 mines for all."""
        texts, queries = self._texts.documents, list(self._miner.queries.values())
        documents = _encode_by_ranks(model, texts, "document", self.batch_size)
        vectors = _encode_by_ranks(model, queries, "query", self.batch_size)
        return from_first_rank(lambda: self._mine(model, vectors, documents, epoch))

    def _mine(self, model: BaseModel, queries: Vectors, documents: Vectors, epoch: int) -> NDArray[np.int32]:
        index = build_exact(documents, list(self._place), check_encoder(model))
        names = list(self._miner.queries)
        rows: list[MinedRow] = []
        for start in range(0, len(names), self.block_queries):
            block = slice(start, start + self.block_queries)
            run = index.search(queries[block], self._miner.rule.last_rank).to_run(names[block])
            scores = (
                score_by_teacher(self.teacher, self.data, run, self.split)
                if self.teacher is not None
                else None
            )
            rows += self._miner.mine(run, scores, seed=epoch)
        return self._positions(rows)

    def _positions(self, rows: list[MinedRow]) -> NDArray[np.int32]:
        return np.array([[self._place[document] for document in row.negatives] for row in rows], np.int32)


class _NegativeTexts:
    """The transform of the dataset, which turns the number of a row into the text of its current negative.

    The dataset's negative columns hold the number of the row itself. A copy of the dataset (the sampler makes
    one) copies this transform; `__deepcopy__` makes all copies share it, so that they see the same negatives.

    Args:
        documents: The texts of the corpus.
        positions: `[rows, negatives]` int32, the current negatives as positions in `documents`.
    """

    def __init__(self, documents: list[str], positions: NDArray[np.int32]) -> None:
        self.documents = documents
        self.positions = positions
        self.columns = [f"negative_{rank}" for rank in range(1, positions.shape[1] + 1)]

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        texts = {
            name: [self.documents[self.positions[row, place]] for row in batch[name]]
            for place, name in enumerate(self.columns)
            if name in batch
        }
        return {**batch, **texts}

    def __deepcopy__(self, memo: dict[int, Any]) -> _NegativeTexts:
        return self


def _encode_by_ranks(model: BaseModel, texts: list[str], kind: Any, batch_size: int) -> Vectors:
    """Let each rank encode its share; rank 0 returns the vectors of all texts, the others their share."""
    ranks = world_size()
    if ranks == 1 or len(texts) < ranks:
        return encode(model, texts, kind, batch_size=batch_size)
    rank = dist.get_rank()
    own = encode(model, texts[rank::ranks], kind, batch_size=batch_size)
    parts: list[Any] | None = [None] * ranks if rank == 0 else None
    dist.gather_object(own, parts, dst=0)
    if parts is None:
        return own
    # Rank r encoded the texts r, r + ranks, r + 2 * ranks and so on; put them back into their order.
    back = np.argsort(np.concatenate([np.arange(first, len(texts), ranks) for first in range(ranks)]))
    return join_vectors(parts)[back]
