"""The two trainers: of sparse encoders, with a fused head, a curriculum and a teacher, and of dense ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.base.model import BaseModel
from sentence_transformers.sparse_encoder import SparseEncoder, SparseEncoderTrainer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

from lexforge.common.ranks import from_first_rank
from lexforge.common.types import Embeddings, TextKind
from lexforge.losses import NeuralSparseLoss
from lexforge.losses.base import losses_of
from lexforge.models import decoder_biases, fuse_splade_head, vocabulary_size
from lexforge.models.structure import freeze_positions
from lexforge.runs.checkpoint_folders import step_of
from lexforge.runs.finite import FiniteTraining
from lexforge.runs.resumable import ResumableTraining
from lexforge.runs.state import read_state
from lexforge.runs.weight_average import WeightAverage
from lexforge.settings import Phase
from lexforge.sparsity import ActiveTermsController, Finishing, check_terms_of_model, trim_documents
from lexforge.sparsity.constants import COUNTED_TEXTS, QUERY_TOLERANCE, SAMPLE
from lexforge.sparsity.sample import mean_active_terms, sample_texts
from lexforge.training.any_loss import AnyLossTraining, Losses
from lexforge.training.collapse import CollapseCallback
from lexforge.training.collator import DenseCollator, SpladeCollator
from lexforge.training.columns import check_training_rows, texts_of_rows
from lexforge.training.curriculum import CurriculumCallback, phase_at

logger = logging.getLogger(__name__)


class SpladeTrainer(ResumableTraining, FiniteTraining, AnyLossTraining, SparseEncoderTrainer):
    """Train a `SparseEncoder` with any loss of lexforge or sentence-transformers.

    It takes what `SparseEncoderTrainer` takes (`AnyLossTraining`), and adds the following:

    - It fuses the model's head, so that no `[B, L, V]` logits are made.
    - It checks the rows of a `NeuralSparseLoss` before training and adds the teacher's embeddings to each
      batch.
    - It follows the curriculum of a `NeuralSparseLoss`.
    - It brings the mean number of active terms per text near a wanted number (`ActiveTermsController`), and
      makes that of documents exact at the end of `train` (`trim_documents`).
    - It logs each part of the loss with its share of the total, the active dimensions and the phase, and
      warns when the activations collapse.
    - It survives interruptions, with the average of the weights and the controller as they were
      (`ResumableTraining`), and stops when a number is not finite (`FiniteTraining`).

    Args:
        model: The model to train, whose head is fused in place; None if `model_init` makes it.
        loss: A loss of that model, a dictionary of losses by the name of the data set, or None for the
            default of `SparseEncoderTrainer`.
        teacher: Maps texts to embeddings, as a `TeacherCache` or a `BM25Teacher` of `lexforge.teachers` does;
            None if the loss needs none. Only a `NeuralSparseLoss` reads it.
        phases: The curriculum of a single `NeuralSparseLoss`; empty for none.
        ramp_fraction: Share of training, in [0, 1], during which the sparsity weights of a single
            `NeuralSparseLoss` grow to their full values.
        start_share: Share of the weights of the start, in [0, 1), in the model that `train` leaves and that
            `evaluate` measures; checkpoints hold the trained weights (`Finishing`).
        prune_threshold: What a term's logit must exceed, >= 0, in that model.
        average_horizon: Number of steps over which the trained weights in that model are averaged, as a share
            of all steps, in [0, 1] (`WeightAverage`); 0 takes the weights of the last step.
        train_positions: Whether learned position embeddings are trained. A short training of the lexical
            backbone should leave them alone (`freeze_positions`).
        document_terms: Wanted mean number of active terms per document in that model; None leaves it to the
            loss.
        query_terms: The same for queries. Only the weight of their sparsity term follows it, so the model
            comes near the number, and not to it.
        counted_texts: Queries and documents, by `"query"` and `"document"`, a sample of which is counted:
            texts like those that the model will encode. Where there are few of a kind, texts of the training
            rows fill the sample up.
        **kwargs: `fastest_precision`, `dropout`, `gradient_checkpointing` and `training_seq_length` of
            `AnyLossTraining`, and all of `SparseEncoderTrainer`: `args`, `train_dataset`, `eval_dataset`,
            `evaluator`, `callbacks`, `model_init` and others.

    Raises:
        TypeError: If the loss is none of the above.
        ValueError: If a teacher, a curriculum or a wanted number of terms is given for other losses, the
            model cannot be brought to such a number, the rows of a `NeuralSparseLoss` are not what
            `lexforge.data.columns.check_cells` asks for, the phases do not cover training, or `train` finds
            that no step can be taken or that the schedule cannot follow the phases; see also
            `AnyLossTraining`.
        NonFiniteError: If `train` or `evaluate` meets a number that is NaN or infinite.
        DiskFullError: If a checkpoint that `train` writes does not fit on the disk.
        DamagedCheckpointError: If `train` is to resume from a checkpoint that is not whole.
        TrainingInterrupted: If a signal reached any rank during `train`.
    """

    def __init__(
        self,
        model: SparseEncoder | None = None,
        loss: Losses = None,
        *,
        teacher: Embeddings | None = None,
        phases: Sequence[Phase] = (),
        ramp_fraction: float = 0.0,
        start_share: float = 0.0,
        prune_threshold: float = 0.0,
        average_horizon: float = 0.0,
        train_positions: bool = True,
        document_terms: float | None = None,
        query_terms: float | None = None,
        counted_texts: Mapping[TextKind, Sequence[str]] | None = None,
        **kwargs: Any,
    ) -> None:
        self.teacher = teacher
        self.phases = tuple(phases)
        self.ramp_fraction = ramp_fraction
        self.start_share = start_share
        self.prune_threshold = prune_threshold
        self.weight_average = WeightAverage(average_horizon) if average_horizon else None
        self.train_positions = train_positions
        self.wanted_terms = {"query_terms": query_terms, "document_terms": document_terms}
        self.counted_texts = counted_texts or {}
        self._frozen: list[Tensor] = []  # what this training leaves alone
        # The sample of the controller, once it is drawn.
        self._counted: dict[TextKind, list[str]] | None = None
        self._make_callbacks(losses_of(loss))
        super().__init__(model=model, loss=loss, **kwargs)
        # The average comes before the controller, whose counts read it.
        for callback in filter(None, (self.curriculum, self.weight_average, self.controller)):
            self.add_callback(callback)
        parts = {
            "weight_average": self.weight_average,
            "active_terms": self.controller,
            "encoder_precision": self.encoder_precision,
        }
        self.run_state.parts |= {name: part for name, part in parts.items() if part is not None}
        wanted = self.wanted_terms["document_terms"] is not None
        self.add_callback(CollapseCallback(vocabulary_size(self.model), terms_are_wanted=wanted))

    def prepare_model(self, model: BaseModel) -> None:
        """Remember the weights of a model that is to be trained, and fuse its head."""
        assert isinstance(model, SparseEncoder)
        check_terms_of_model(model, **self.wanted_terms)
        if self.prune_threshold:
            decoder_biases(model)  # an error now, and not after the last step
        averages = None if self.weight_average is None else self.weight_average.state
        self.finishing = Finishing(model, self.start_share, self.prune_threshold, averages)
        fuse_splade_head(model)
        super().prepare_model(model)

    def begin_anew(self) -> None:
        """Remember the weights again: an earlier training with this trainer may have changed them."""
        self.finishing.begin(self.model)

    def check_rows(self, dataset: Any, loss: nn.Module) -> None:
        """Check the rows of a `NeuralSparseLoss`; other losses take what sentence-transformers hands them."""
        if isinstance(loss, NeuralSparseLoss):
            labels_are_read = bool(loss.weights["distillation"] or loss.weights["margin_mse"])
            check_training_rows(dataset, self._label_columns, labels_are_read=labels_are_read)

    def _make_callbacks(self, losses: Sequence[Any]) -> None:
        """Make what writes into a single `NeuralSparseLoss`; refuse what other losses do not read."""
        ours = [loss for loss in losses if isinstance(loss, NeuralSparseLoss)]
        names = [type(loss).__name__ for loss in losses if loss is not None] or ["the default of the parent"]
        received = f"received {', '.join(names)}"
        if self.teacher is not None:
            if len(ours) < len(losses):
                raise ValueError(
                    "a teacher needs a NeuralSparseLoss for every data set, because no other loss reads its "
                    f"embeddings; {received}. Leave the teacher out, or give its scores in a label column to "
                    "a loss that reads them, such as SparseMarginMSELoss"
                )
            similarity = self.teacher.similarity
            for found in (one.teacher_similarity for one in ours if one.teacher_similarity != similarity):
                raise ValueError(
                    f"this {type(self.teacher).__name__} compares texts by {similarity!r}: its loss needs "
                    f"teacher_similarity={similarity!r}; received {found!r}"
                )
        self.curriculum: CurriculumCallback | None = None
        self.controller: ActiveTermsController | None = None
        wanted = {name: number for name, number in self.wanted_terms.items() if number is not None}
        if ours and len(losses) == 1:
            self.curriculum = CurriculumCallback(ours[0], self.phases, self.ramp_fraction)
            if wanted:
                self.controller = ActiveTermsController(ours[0], self._count_terms, **wanted)
        elif self.phases or self.ramp_fraction or wanted:
            raise ValueError(
                "phases, ramp_fraction, query_terms and document_terms need a single NeuralSparseLoss, whose "
                f"temperature and weights they write; {received}. Leave them out, or train with one "
                "NeuralSparseLoss for all data"
            )

    def _count_terms(self) -> dict[TextKind, float]:
        """The mean numbers of active terms, on a few texts, of the model that training would leave now.

        Every rank must call this. The first one counts.
        """
        if self._counted is None:
            self._counted = self._sample(COUNTED_TEXTS)
        texts, batch_size = self._counted, self.args.per_device_eval_batch_size
        with self.sharded.whole_in_place(self.args.device), self.finishing.in_place(self.model):
            return from_first_rank(lambda: mean_active_terms(self.model, texts, batch_size))

    def _sample(self, most: int) -> dict[TextKind, list[str]]:
        """At most so many texts of each kind that has a wanted number; the same ones each time."""
        texts = sample_texts(
            self.counted_texts,
            lambda: texts_of_rows(self.train_dataset, self._label_columns, most=SAMPLE),
            most=most,
            seed=self.args.seed,
        )
        return {kind: some for kind, some in texts.items() if self.wanted_terms[f"{kind}_terms"] is not None}

    def _trim(self) -> None:
        """Give documents of the finished model their wanted number, and tell what texts have."""
        texts, batch_size = self._sample(SAMPLE), self.args.per_device_eval_batch_size
        reached: dict[TextKind, float] = {}
        if (wanted := self.wanted_terms["document_terms"]) is not None:
            reached["document"] = trim_documents(
                self.model, texts.pop("document"), wanted, scaled=False, batch_size=batch_size
            )
        if (wanted := self.wanted_terms["query_terms"]) is not None:
            reached |= from_first_rank(lambda: mean_active_terms(self.model, texts, batch_size))
            if abs(reached["query"] / wanted - 1) > QUERY_TOLERANCE and self.is_world_process_zero():
                logger.warning(
                    "a query has %.1f active terms on average, and %g were wanted: only the weight of their "
                    "sparsity term follows query_terms. Train longer, or ask for a number nearer to that",
                    reached["query"],
                    wanted,
                )
        self.log({f"terms/{kind}_finished": round(mean, 2) for kind, mean in reached.items()})

    def get_data_collator(self, model: Any, args: Any, processing_class: Any = None) -> SpladeCollator:
        """A collator with the stock collator's settings that adds the teacher's embeddings to the tokens."""
        stock = super().get_data_collator(model=model, args=args, processing_class=processing_class)
        return SpladeCollator.like(stock, teacher=self.teacher, encoder=model)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Optimizer:
        """The optimizer that the arguments name, without the position embeddings if so wanted."""
        if not self.train_positions:
            self._frozen += freeze_positions(self.model)  # a retry with smaller batches comes here again
        return super().create_optimizer(*args, **kwargs)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LRScheduler:
        """The schedule that the arguments name, multiplied by the learning-rate factor of the phase."""
        given, phases = self.lr_scheduler, self.phases
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        if given is not None or all(phase.learning_rate_factor == 1 for phase in phases):
            return scheduler
        if not isinstance(scheduler, LambdaLR):
            raise ValueError(
                "a curriculum with learning-rate factors needs a schedule made of factors, such as linear, "
                f"cosine or constant; received lr_scheduler_type={self.args.lr_scheduler_type!r}"
            )

        def times_phase(factor: Callable[[int], float]) -> Callable[[int], float]:
            def scheduled(step: int) -> float:
                phase = phases[phase_at(phases, min(step / num_training_steps, 1.0))]
                return factor(step) * phase.learning_rate_factor

            return scheduled

        self.lr_scheduler = LambdaLR(scheduler.optimizer, [times_phase(one) for one in scheduler.lr_lambdas])
        return self.lr_scheduler

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train as the parent does, then take the averages of the weights and set the threshold."""
        try:
            # The loss may train again, without this curriculum and these wanted numbers.
            with self.curriculum.own_values() if self.curriculum else nullcontext():
                output = super().train(*args, **kwargs)
        finally:
            for parameter in self._frozen:
                parameter.requires_grad_(True)
            self._frozen.clear()
        best = self.state.best_model_checkpoint
        if self.weight_average is not None and self.args.load_best_model_at_end and best is not None:
            self.weight_average.load_state(read_state(Path(best), step_of(best))[0]["weight_average"])
        self.finishing.apply(self.model)
        if self.controller is not None:
            self._trim()
        return output

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate with the weights and the temperature of the end of training, at every step."""
        with self.curriculum.final_values() if self.curriculum else nullcontext():
            return super().evaluate(*args, **kwargs)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate what training would leave if it ended here."""
        if not self.is_in_train:  # `train` has finished the weights already
            return super().evaluation_loop(*args, **kwargs)
        with self.finishing.in_place(self.model):
            return super().evaluation_loop(*args, **kwargs)

    def take_means(self, mode: str) -> dict[str, float]:
        """Return what the losses measured, with the share of each part in the total and the phase."""
        means = super().take_means(mode)
        weights = [loss.weights for loss in self.losses if isinstance(loss, NeuralSparseLoss)]
        parts = [name for name in dict.fromkeys(chain(*weights)) if f"loss/{name}" in means]
        if parts:
            sizes = {name: abs(means[f"loss/{name}"]) for name in parts}
            total = sum(sizes.values()) or 1.0
            means |= {f"share/{name}": size / total for name, size in sizes.items()}
            if self.curriculum and self.phases:
                means["phase"] = self.curriculum.phase_index + 1.0
        if self.controller is not None and mode == "train":
            means |= self.controller.log_values()
        return means


class DenseTrainer(ResumableTraining, FiniteTraining, AnyLossTraining, SentenceTransformerTrainer):
    """Train a `SentenceTransformer` with any loss of lexforge or sentence-transformers.

    It takes what `SentenceTransformerTrainer` takes (`AnyLossTraining`) and adds three things. It keeps
    the state of the loss (queue, prototypes, momentum encoder) equal on all ranks and saves it in each
    checkpoint (`RunStateCallback`). It survives interruptions (`ResumableTraining`). It stops when a number
    is not finite (`FiniteTraining`).

    Args:
        model: The model to train; None if `model_init` makes it.
        loss: A loss of that model, a dictionary of losses by the name of the data set, or None for the
            default of `SentenceTransformerTrainer`.
        **kwargs: `fastest_precision`, `dropout`, `gradient_checkpointing` and `training_seq_length` of
            `AnyLossTraining`, and all of `SentenceTransformerTrainer`: `args`, `train_dataset`,
            `eval_dataset`, `evaluator`, `callbacks`, `model_init` and others.

    Raises:
        TypeError: If the loss is none of the above.
        ValueError: If `train` finds that no step can be taken; see also `AnyLossTraining`.
        NonFiniteError: If `train` or `evaluate` meets a number that is NaN or infinite.
        DiskFullError: If a checkpoint that `train` writes does not fit on the disk.
        DamagedCheckpointError: If `train` is to resume from a checkpoint that is not whole.
        TrainingInterrupted: If a signal reached any rank during `train`.
    """

    def __init__(self, model: SentenceTransformer | None = None, loss: Losses = None, **kwargs: Any) -> None:
        super().__init__(model=model, loss=loss, **kwargs)
        if self.encoder_precision is not None:
            self.run_state.parts["encoder_precision"] = self.encoder_precision

    def get_data_collator(self, model: Any, args: Any, processing_class: Any = None) -> DenseCollator:
        """A collator with the stock collator's settings, whose batches also name their rows."""
        stock = super().get_data_collator(model=model, args=args, processing_class=processing_class)
        return DenseCollator.like(stock, encoder=model)
