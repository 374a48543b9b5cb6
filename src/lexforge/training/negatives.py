"""Negatives that move: every few epochs the model in training ranks the corpus anew, and the rows follow.

As in ANCE (Xiong et al., "Approximate nearest neighbor negative contrastive learning for dense text
retrieval", arXiv 2007.00808), with exact search, and between epochs instead of beside the training.
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
from scipy import sparse
from sentence_transformers import SparseEncoder
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.training_args import BatchSamplers
from torch.distributed.fsdp import FSDPModule
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from lexforge.common.ranks import world_size
from lexforge.common.types import Embeddings
from lexforge.corpus.encoding import Vectors, encode
from lexforge.data import NegativeMiner, NegativeRule, RetrievalData, score_by_teacher
from lexforge.data.columns import ANCHOR, POSITIVE
from lexforge.data.negatives import MinedRow
from lexforge.models.fingerprint import text_digest
from lexforge.models.load import check_encoder
from lexforge.retrieval import FaissIndex, InvertedIndex

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


class MovingNegatives(TrainerCallback, ExportableState):
    """A training set whose negatives the model itself mines, and the callback that does it.

        negatives = MovingNegatives(data, NegativeRule(per_row=1, last_rank=50))
        trainer = SpladeTrainer(model, loss, train_dataset=negatives.dataset, callbacks=[negatives], ...)

    At the beginning of epochs 0, n, 2n, ... the corpus and the split's queries are encoded, each rank its
    share; rank 0 searches and mines, and all ranks take its rows. The rows' number and order never change.
    The negatives in use are part of each checkpoint's `trainer_state.json`: a resumed run goes on with them,
    and mines again when the run that never stopped would have.

    A distillation teacher must know every document of the corpus: any of them may become a negative.

    Args:
        data: The retrieval set.
        rule: What may be a negative; short rows are filled at random.
        every_epochs: Epochs from one mining to the next.
        split: The split to train on.
        teacher: Embeddings of queries and corpus, for a rule with a `teacher_margin`.
        batch_size: Texts a forward pass.
        block_queries: Queries searched at a time, which bounds the memory of the rankings.

    Raises:
        ValueError: A number below 1, a rule that drops short rows, or a teacher and a rule that do not go
            together. When training begins: a sampler or workers that would not see the rows change, a model
            sharded by FSDP2, a second callback of this class, or a checkpoint of other rows.
        DataError: A query without a positive, or a corpus too small to fill a row.
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
                raise ValueError(f"{name} must be at least 1, got {value}")
        if rule.shortage != "random":
            raise ValueError("the number of rows must stay: the rule needs shortage='random'")
        if (rule.teacher_margin is None) != (teacher is None):
            raise ValueError("a rule with a teacher_margin and a teacher go together")
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
        from datasets import Dataset  # not installed where only losses and models are used

        columns = {
            ANCHOR: [self.data.queries[row.query] for row in rows],
            POSITIVE: [self.data.corpus[row.positive] for row in rows],
        }
        numbers = list(range(len(rows)))
        negatives = dict.fromkeys(self._texts.columns, numbers)
        dataset = Dataset.from_dict({**columns, **negatives})
        dataset.set_transform(self._texts)
        return dataset

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take up the negatives of the checkpoint that a run is resumed from."""
        if isinstance(kwargs.get("model"), FSDPModule):
            raise ValueError(
                "MovingNegatives encodes other texts on each rank by the model in training, which FSDP2 does "
                "not allow; train with DistributedDataParallel (recipes/accelerate/multi_gpu.yaml)"
            )
        if getattr(args, "batch_sampler", None) == BatchSamplers.NO_DUPLICATES_HASHED:
            raise ValueError(
                "the sampler no_duplicates_hashed hashes the rows once and would not see them change; "
                "use no_duplicates"
            )
        if args.dataloader_num_workers and args.dataloader_persistent_workers:
            raise ValueError("persistent workers keep the rows they were started with; switch them off")
        if args.restore_callback_states_from_checkpoint:
            raise ValueError(
                "restore_callback_states_from_checkpoint would build this callback anew, without its data; "
                "switch it off: the callback restores itself"
            )
        if isinstance(self._saved(state), list):
            raise ValueError("a trainer takes one MovingNegatives, and this one has several")
        self.mined_epoch = None
        if state.global_step:
            self._restore(state)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Mine, if it is time."""
        batches = len(kwargs["train_dataloader"])
        steps = max(1, -(-batches // args.gradient_accumulation_steps))
        epoch = state.global_step // steps  # as the Trainer counts the epochs of a resumed run
        if epoch % self.every_epochs == 0 and epoch != self.mined_epoch:
            before = self._texts.positions
            self._texts.positions = self._mine_on_all_ranks(kwargs["model"], epoch)
            self.mined_epoch = epoch
            changed = float((before != self._texts.positions).mean())
            logger.info("epoch %d: mined the negatives anew, %.1f %% of them changed", epoch, 100 * changed)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the negatives in use, as positions in the corpus, and their epoch."""
        packed = zlib.compress(self._texts.positions.astype("<i4").tobytes())
        attributes = {
            "mined_epoch": self.mined_epoch,
            "rows": self._digest,
            "shape": list(self._texts.positions.shape),
            "positions": base64.b64encode(packed).decode("ascii"),
        }
        return {"args": {}, "attributes": attributes}

    def _saved(self, state: TrainerState) -> Any:
        callbacks: Any = state.stateful_callbacks  # by class; a list where there are several of one
        return callbacks.get(type(self).__name__)

    def _restore(self, state: TrainerState) -> None:
        saved = self._saved(state)
        if saved is None:
            raise ValueError(f"the checkpoint of step {state.global_step} holds no negatives to go on with")
        attributes = saved["attributes"]
        if attributes["rows"] != self._digest or attributes["shape"] != list(self._texts.positions.shape):
            raise ValueError(
                f"the checkpoint of step {state.global_step} holds negatives of another corpus, of other "
                f"queries or of another number a row: {attributes['shape']}, here "
                f"{list(self._texts.positions.shape)}"
            )
        packed = zlib.decompress(base64.b64decode(attributes["positions"]))
        self._texts.positions = np.frombuffer(packed, "<i4").reshape(attributes["shape"])
        self.mined_epoch = attributes["mined_epoch"]

    def _mine_on_all_ranks(self, model: BaseModel, epoch: int) -> NDArray[np.int32]:
        """Rank 0 mines; an error of it is raised on all ranks, so that none waits for ever."""
        texts, queries = self._texts.documents, list(self._miner.queries.values())
        documents = _encode_by_ranks(model, texts, "document", self.batch_size)
        vectors = _encode_by_ranks(model, queries, "query", self.batch_size)
        if world_size() == 1:
            return self._mine(model, vectors, documents, epoch)
        outcome: list[Any] = [None]
        if dist.get_rank() == 0:
            try:
                outcome[0] = self._mine(model, vectors, documents, epoch)
            except Exception as error:
                outcome[0] = error
        dist.broadcast_object_list(outcome, src=0)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    def _mine(self, model: BaseModel, queries: Vectors, documents: Vectors, epoch: int) -> NDArray[np.int32]:
        build: Any = InvertedIndex.build if isinstance(model, SparseEncoder) else FaissIndex.build
        index = build(documents, list(self._place), similarity=check_encoder(model))
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
    """The transform of the dataset: a cell of a negative's column holds the row's number, and is read as the
    text of the document that stands there now.

    A copy of the dataset (the sampler makes one) copies its transform; all copies must see the same rows.
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
    """The vectors of all texts on rank 0, each rank encoding its share; the others return their own."""
    ranks = world_size()
    if ranks == 1 or len(texts) < ranks:
        return encode(model, texts, kind, batch_size=batch_size)
    rank = dist.get_rank()
    own = encode(model, texts[rank::ranks], kind, batch_size=batch_size)
    parts: list[Any] | None = [None] * ranks if rank == 0 else None
    dist.gather_object(own, parts, dst=0)
    if parts is None:
        return own
    back = np.argsort(np.concatenate([np.arange(first, len(texts), ranks) for first in range(ranks)]))
    if isinstance(own, np.ndarray):
        return np.concatenate(parts)[back]
    return sparse.csr_array(sparse.vstack(parts, format="csr"))[back]
