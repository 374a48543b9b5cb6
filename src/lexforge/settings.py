"""All that a command line reads: presets, their groups of settings, and options. It imports no torch."""

from __future__ import annotations

import codecs
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, TypeVar, get_args

from lexforge.common.similarity import Similarity

try:
    from tyro.conf import Suppress as NoFlag  # a number that is set in a preset or in Python
    from tyro.conf import arg

    NO_PREFIX = arg(name="")  # options of a group without its name before each
except ImportError:  # a machine that only runs losses reads no command line
    NoFlag = NO_PREFIX = None

if TYPE_CHECKING:
    from sentence_transformers.base.training_args import BaseTrainingArguments

Arguments = TypeVar("Arguments", bound="BaseTrainingArguments")

SPARSE_FILE, VECTORS_FILE = "sparse_linear.pt", "colbert_linear.pt"
"""The two heads of BGE-M3 in FlagEmbedding's layout, beside the encoder."""
LEXICAL = "lexical"
"""The name of the backbone that is built from the corpus."""
BACKBONE = "backbone"
"""The folder of a run directory that keeps it."""
BM25, LSA, LSA_CHAR = FITTED_TEACHERS = ("bm25", "lsa", "lsa-char")
"""The teachers that are fitted on the corpus, and need no files."""
START = "start"
"""The model before it is adapted, as one of the teachers."""
UNKNOWN = "unknown"

NegativesName: TypeAlias = Literal["given", "none", "mined", "judged", "bm25"]
PresetNegatives: TypeAlias = Literal["none", "mined", "bm25"]
PresetName: TypeAlias = Literal["lexforge", "lexforge-scratch", "plain", "bge-m3", "v22", "v23", "v25", "v26"]
"""The names of the presets in `PRESETS`."""
Precision: TypeAlias = Literal["auto", "fp32", "bf16", "fp16"]
EncodingPrecision: TypeAlias = Literal["fp32", "bf16"]
Shortage: TypeAlias = Literal["random", "drop"]
"""What happens to a row with too few negatives: random documents fill it up, or it is dropped."""
Vocabulary: TypeAlias = Literal["all", "seen"]
"""The terms that a model may use: all, or those that occur in its corpus."""
BadRows: TypeAlias = Literal["fail", "skip"]
"""What becomes of data with bad rows: they are refused as a whole, or such rows are left out."""
IndexName: TypeAlias = Literal["inverted", "faiss-flat", "faiss-hnsw", "faiss-ivf", "milvus", "qdrant"]
"""The indexes that a command line can name."""
VectorType: TypeAlias = Literal["sparse", "dense"]
"""The two types of vectors that an encoder gives."""
ModelTargetName: TypeAlias = Literal["onnx", "onnx-pairs", "onnx-logits", "elasticsearch", "opensearch"]
"""What a model can be exported for; docs/export.md describes each target."""

Quantization: TypeAlias = Literal["int8"]
"""How the weights of an exported model can be made smaller."""

VectorTargetName: TypeAlias = Literal[
    "anserini", "ciff", "opensearch", "opensearch-sparse-vector", "elasticsearch", "vespa", "pgvector"
]
"""The engine that vectors can be exported for; docs/engines.md describes each target."""


# The groups of a preset.


@dataclass(frozen=True)
class Phase:
    """One phase of training and the values in force during it.

    Args:
        until: End of the phase as a share of training in (0, 1], exclusive; the last phase ends at 1.
        temperature: Temperature of InfoNCE.
        infonce_weight: Weight of InfoNCE.
        distillation_weight: Weight of distillation.
        learning_rate_factor: Multiplies the learning rate of the schedule, finite and >= 0.

    Raises:
        ValueError: If `SparseLossNumbers` refuses a number, or the factor is out of range.
    """

    until: float
    temperature: float
    infonce_weight: float
    distillation_weight: float
    learning_rate_factor: float = 1.0

    def __post_init__(self) -> None:
        SparseLossNumbers(
            temperature=self.temperature,
            infonce_weight=self.infonce_weight,
            distillation_weight=self.distillation_weight,
        )
        if not 0 <= self.learning_rate_factor < math.inf:
            raise ValueError(
                f"learning_rate_factor must be finite and >= 0; received {self.learning_rate_factor}"
            )


def check_positive(**numbers: float | None) -> None:
    """Refuse numbers that are not finite or not above 0.

    Args:
        **numbers: Numbers by the name under which the user gave them; None is not checked.

    Raises:
        ValueError: If one of them is not.
    """
    for name, number in numbers.items():
        if number is not None and not 0 < number < math.inf:
            raise ValueError(f"{name} must be a finite number above 0; received {number}")


@dataclass(frozen=True)
class SparseLossNumbers:
    """Weights, temperatures and thresholds of `NeuralSparseLoss`; the defaults are those of V26.

    A term of weight 0 is switched off and not computed. Sections are those of docs/losses.md.

    Args:
        temperature: Divides the scores in InfoNCE, above 0 (section 1).
        infonce_weight: Weight of InfoNCE (section 1).
        self_reconstruction_weight: Weight of self-reconstruction (section 2).
        positive_activation_weight: Weight of positive activation (section 3).
        own_activation_weight: Weight of own activation (section 20). None is 0, and in a run whose head was
            not trained for SPLADE the preset's number for such a head.
        triplet_margin_weight: Weight of the triplet margin (section 4), averaged over the negative columns;
            above 0 the data needs negatives.
        margin: Margin of the triplet term, in units of the cosine.
        flops_weight: Weight of the sparsity term (section 5) of the documents.
        query_flops_weight: Weight of the sparsity term of the queries; None takes `flops_weight`.
        l2_ratio: beta, the share of the squared part in the IDF-aware sparsity term; not read by plain FLOPS.
        minimum_activation_weight: Weight of minimum activation (section 6).
        top_k: Number of strongest terms whose mean the minimum activation looks at.
        activation_threshold: Floor that the minimum activation sets for that mean.
        distillation_weight: Weight of distillation (section 7); above 0 the data needs a teacher's scores or
            embeddings.
        distillation_temperature: Temperature of the KL part of distillation, above 0.
        kl_weight: Weight of the KL part within distillation.
        mse_weight: Weight of the z-score part within distillation.
        margin_mse_weight: Weight of MarginMSE (section 7); above 0 the data needs a teacher, as distillation
            does.
        regularized: The columns on which FLOPS, self-reconstruction, own activation and minimum activation
            act: `all`, or the `anchor` alone, as in the public code behind the notes (section 8).

    Raises:
        ValueError: If a number is out of its range, every weight is 0, or `regularized` is unknown.

    Source: docs/losses.md, sections 1 to 8.
    """

    temperature: float = 0.07
    infonce_weight: float = 3.0
    self_reconstruction_weight: float = 0.5
    positive_activation_weight: float = 2.0
    own_activation_weight: float | None = None
    triplet_margin_weight: float = 0.0
    margin: Annotated[float, NoFlag] = 0.3
    flops_weight: float = 0.010
    query_flops_weight: float | None = None
    l2_ratio: Annotated[float, NoFlag] = 0.3
    minimum_activation_weight: float = 1.0
    top_k: Annotated[int, NoFlag] = 5
    activation_threshold: Annotated[float, NoFlag] = 0.5
    distillation_weight: float = 2.0
    distillation_temperature: Annotated[float, NoFlag] = 3.0
    kl_weight: float = 0.7
    mse_weight: float = 0.3
    margin_mse_weight: float = 0.0
    regularized: Literal["all", "anchor"] = "all"

    def __post_init__(self) -> None:
        for name, weight in self.term_weights().items():
            if not 0 <= weight < math.inf:
                raise ValueError(f"the weight of {name} must be finite and >= 0; received {weight}")
        if not any(self.term_weights().values()):
            raise ValueError("at least one weight must be above 0; received 0 for every term")
        check_positive(temperature=self.temperature, distillation_temperature=self.distillation_temperature)
        for name in ("l2_ratio", "margin", "kl_weight", "mse_weight"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and >= 0; received {getattr(self, name)}")
        if self.regularized not in ("all", "anchor"):
            raise ValueError(f"regularized must be 'all' or 'anchor'; received {self.regularized!r}")

    @property
    def needs_teacher(self) -> bool:
        """Whether a term reads a teacher's scores or embeddings."""
        return bool(self.distillation_weight or self.margin_mse_weight)

    def term_weights(self) -> dict[str, float]:
        """Return the weight of each term under the name by which the loss returns and logs it."""
        query_flops = self.flops_weight if self.query_flops_weight is None else self.query_flops_weight
        return {
            "infonce": self.infonce_weight,
            "self_reconstruction": self.self_reconstruction_weight,
            "positive_activation": self.positive_activation_weight,
            "own_activation": self.own_activation_weight or 0.0,
            "triplet_margin": self.triplet_margin_weight,
            "flops_query": query_flops,
            "flops_document": self.flops_weight,
            "minimum_activation": self.minimum_activation_weight,
            "distillation": self.distillation_weight,
            "margin_mse": self.margin_mse_weight,
        }


NUMBER_NAMES = tuple(each.name for each in fields(SparseLossNumbers))


@dataclass(frozen=True)
class LossSettings(SparseLossNumbers):
    """The numbers of `NeuralSparseLoss`, and what else forms the loss of a run; the defaults are V26.

    Where a curriculum is given, its temperature, InfoNCE weight and distillation weight replace those of the
    loss, phase by phase.

    Args:
        similarity: Similarity of training, evaluation and every index: "cosine" or "dot".
        idf_alpha: Steepness of the IDF-aware penalty; None is the plain FLOPS of SPLADE.
        special_penalty: Fixed penalty of special tokens; None leaves them inside the idf range, as before
            V26.
        stopword_penalty: Factor on the penalty of stop words.
        ramp_fraction: Share of training, in [0, 1], over which sparsity weights and penalties grow to their
            full values; 0 puts the full values in force at once, as V26 does.
        phases: The curriculum; empty for none.

    Source: docs/losses.md, sections 5, 8 and 9.
    """

    similarity: Annotated[Similarity, NoFlag] = "cosine"
    idf_alpha: float | None = 4.0
    special_penalty: Annotated[float | None, NoFlag] = 100.0
    stopword_penalty: float = 15.0
    ramp_fraction: float = 0.0
    phases: Annotated[tuple[Phase, ...], NoFlag] = (
        Phase(
            8 / 25, temperature=0.08, infonce_weight=2.5, distillation_weight=2.5, learning_rate_factor=1.0
        ),
        Phase(
            17 / 25, temperature=0.05, infonce_weight=3.0, distillation_weight=1.5, learning_rate_factor=0.5
        ),
        Phase(1.0, temperature=0.04, infonce_weight=3.0, distillation_weight=0.8, learning_rate_factor=0.25),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = [phase.until for phase in self.phases]
        if ends and (ends[-1] != 1 or ends[0] <= 0 or any(a >= b for a, b in pairwise(ends))):
            raise ValueError(
                f"phases must end at increasing shares of training, the last at 1; received {ends}"
            )
        if not 0 <= self.ramp_fraction <= 1:
            raise ValueError(f"ramp_fraction must lie in [0, 1]; received {self.ramp_fraction}")

    def arguments(self) -> dict[str, Any]:
        """Return the settings that `NeuralSparseLoss` takes by the same name.

        The idf settings need a corpus (`lexforge.losses.penalty_weights`); ramp and phases are the trainer's.
        """
        return {name: getattr(self, name) for name in ("similarity", *NUMBER_NAMES)}


@dataclass(frozen=True)
class StartSettings:
    """What becomes of an encoder before its first step.

    Args:
        scale_head: Whether the head of a masked language model that was not trained for SPLADE gets its scale
            from the documents. A model without a head gets it with every preset.
        idf_bias: Shift of a term's logit per unit of its idf, finite and >= 0, in a pretrained encoder; the
            lexical backbone has idf in its weights already. 0 shifts nothing.
        untrained_document_terms: Wanted number of active terms per document where the user wants no number of
            documents or queries, and the head was not trained, or was made of embeddings; None leaves it to
            the loss.
        untrained_query_terms: The same per query.
        untrained_own_activation: Weight of own activation where the head was not trained and the user wants
            none by number.

    Raises:
        ValueError: If `idf_bias` is out of range.

    Source: docs/losses.md, sections 18 and 20.
    """

    scale_head: Annotated[bool, NoFlag] = False
    idf_bias: float = 0.0
    untrained_document_terms: Annotated[int | None, NoFlag] = None
    untrained_query_terms: Annotated[int | None, NoFlag] = None
    untrained_own_activation: Annotated[float, NoFlag] = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.idf_bias < math.inf:
            raise ValueError(f"idf_bias must be finite and >= 0; received {self.idf_bias}")

    def of_untrained_head(
        self, loss: LossSettings, finish: FinishSettings
    ) -> tuple[LossSettings, FinishSettings]:
        """Return the settings of a run whose head was not trained for SPLADE.

        Training by itself does not bring the words of a text to its terms then, so it gets own activation.
        The encoder is no retriever yet, so the model at the end keeps no share of it.

        Args:
            loss: The numbers of the loss; a weight of own activation that the user gave stays.
            finish: What becomes of the trained weights.
        """
        if loss.own_activation_weight is None:
            loss = replace(loss, own_activation_weight=self.untrained_own_activation)
        return loss, replace(finish, start_share=0.0)

    def wanted_terms(self, loss: LossSettings, vocabulary_size: int) -> dict[str, int]:
        """Return the numbers of terms that a run wants where the weight of FLOPS does not lead to few terms.

        Args:
            loss: The numbers of the loss. A text whose FLOPS weigh nothing has no wanted number, because
                training reaches one by way of that weight.
            vocabulary_size: V; a small vocabulary has not so many terms to give, so they are at most V / 20.

        Returns:
            The numbers by the names of `SpladeTrainer`.
        """
        weights, few = loss.term_weights(), max(1, vocabulary_size // 20)
        wanted = {"document": self.untrained_document_terms, "query": self.untrained_query_terms}
        return {
            f"{kind}_terms": min(number, few)
            for kind, number in wanted.items()
            if number is not None and weights[f"flops_{kind}"]
        }


@dataclass(frozen=True)
class FinishSettings:
    """What becomes of the trained weights in the model that training leaves.

    Args:
        start_share: Share of the weights of the start, in [0, 1).
        prune_threshold: What the logit of a term must exceed, finite and >= 0.
        average_horizon: Number of steps over which the trained weights are averaged, as a share of all steps,
            in [0, 1]; 0 takes the weights of the last step.

    Raises:
        ValueError: If a number is out of range.

    Source: docs/losses.md, section 18.
    """

    start_share: float = 0.0
    prune_threshold: float = 0.0
    average_horizon: Annotated[float, NoFlag] = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.start_share < 1:
            raise ValueError(f"start_share must lie in [0, 1); received {self.start_share}")
        if not 0 <= self.prune_threshold < math.inf:
            raise ValueError(f"prune_threshold must be finite and >= 0; received {self.prune_threshold}")
        if not 0 <= self.average_horizon <= 1:
            raise ValueError(f"average_horizon must lie in [0, 1]; received {self.average_horizon}")


@dataclass(frozen=True)
class DataSettings:
    """What rows that are made of judgements get where the user names nothing else.

    Args:
        negatives: Hard negatives: none; those that the model mines before the first step; or those of BM25.
        negatives_per_row: Number of hard negatives in each row.
        teacher: Teacher of distillation: the fitted `lsa`; or `bm25`, which teaches only if it ranks training
            queries better than the model before training.
    """

    negatives: PresetNegatives = "none"
    negatives_per_row: int = 1
    teacher: Literal["lsa", "bm25"] = "lsa"


@dataclass(frozen=True)
class TrainingSettings:
    """How long, how fast and in which batches to train; the defaults are those of the notes on V26.

    Args:
        steps: Number of optimizer steps; None trains for `epochs` instead.
        epochs: Number of passes over the data; give `steps` or this. None for both leaves the choice to the
            recipe, and is 25 passes, as V26 has, elsewhere.
        batch_size: Rows per device in one micro-batch.
        gradient_accumulation_steps: Micro-batches per optimizer step.
        learning_rate: Peak learning rate of AdamW; None leaves the choice to the recipe, which knows the
            model.
        lr_scheduler_type: What becomes of the learning rate after the warm-up: it falls to 0 as a cosine, or
            stays, which is good where the weights are averaged.
        weight_decay: Weight decay of all parameters except biases and normalisation weights.
        warmup_fraction: Share of training, in [0, 1), during which the learning rate grows linearly.
        dropout: Share of every dropout of the encoder, in [0, 1); None keeps those that it has.
        training_seq_length: Tokens per text of the training rows, special tokens included, at most what the
            model reads. Longer texts are cut for training alone, which makes the steps cheaper. None leaves
            the choice to the recipe, and is all that the model reads elsewhere.
        precision: Precision of the encoder under autocast; the loss is computed in float32. `auto` is
            bfloat16 on a processor that computes this encoder faster so, which is measured, and else float32.
        mini_batch_size: Rows that are encoded at once; a larger batch is encoded twice, piece by piece, with
            the same loss and gradients (gradient caching). `auto` is the whole batch where its activations
            fit into the free memory, which is measured, and else as many rows as fit; None is the whole
            batch.
        gradient_checkpointing: Whether the backward pass computes the activations of each layer again
            instead of keeping them; the trainers take it.
        optim: Optimizer, by the name that transformers gives it, such as `adafactor`, which needs hardly any
            memory, or `adamw_torch_8bit` with torchao.
        save_steps: Number of optimizer steps between two checkpoints; None is a quarter of the steps, and at
            most 500.
        save_total_limit: Number of the newest checkpoints that are kept, beside the best by `best_measure`;
            None keeps all.
        logging_steps: Number of optimizer steps between two lines of the log; a number below 1 is a share of
            all steps.
        report_to: Trackers that get the log, such as tensorboard or wandb; their packages must be installed.
        seed: Seed of the sampler and of dropout.

    Raises:
        ValueError: If a number is out of range, if `steps` and `epochs` are both given, or if the precision
            is unknown.
    """

    steps: int | None = None
    epochs: float | None = None
    batch_size: int = 24
    gradient_accumulation_steps: int = 4
    learning_rate: float | None = 3e-5
    lr_scheduler_type: Annotated[Literal["cosine", "constant_with_warmup"], NoFlag] = "cosine"
    weight_decay: Annotated[float, NoFlag] = 0.01
    warmup_fraction: float = 0.1
    dropout: float | None = None
    training_seq_length: int | None = None
    precision: Precision = "bf16"
    mini_batch_size: int | Literal["auto"] | None = None
    gradient_checkpointing: bool = False
    optim: str = "adamw_torch_fused"
    save_steps: int | None = None
    save_total_limit: int | None = 2
    logging_steps: float = 0.02
    report_to: tuple[str, ...] = ()
    seed: int = 42

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision must be one of {get_args(Precision)}; received {self.precision!r}")
        if self.steps is not None and self.epochs is not None:
            raise ValueError(
                "the length of training is given by --steps or by --epochs; received "
                f"{self.steps} steps and {self.epochs:g} epochs, of which the steps would win in silence"
            )
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), or be None; received {self.dropout}")
        if isinstance(self.mini_batch_size, int) and self.mini_batch_size < 1:
            raise ValueError(
                f"mini_batch_size must be above 0, auto or none; received {self.mini_batch_size}"
            )
        if not 0 <= self.warmup_fraction < 1:
            raise ValueError(f"warmup_fraction must lie in [0, 1); received {self.warmup_fraction}")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must be 0 or more; received {self.weight_decay}")
        counts = ("steps", "epochs", "batch_size", "gradient_accumulation_steps", "save_total_limit")
        for name in (*counts, "learning_rate", "save_steps", "logging_steps"):
            check_positive(**{name: getattr(self, name)})
        if self.logging_steps > 1 and self.logging_steps % 1:
            raise ValueError(f"logging_steps above 1 must be a whole number; received {self.logging_steps}")

    def left_open(self) -> TrainingSettings:
        """Return the settings without length, learning rate and tokens, which a command line may give."""
        return replace(self, steps=None, epochs=None, learning_rate=None, training_seq_length=None)

    def with_defaults(self, defaults: TrainingSettings, tokens: int | None = None) -> TrainingSettings:
        """Return the settings with what others say of length, learning rate and tokens where it is left open.

        Args:
            defaults: The other settings.
            tokens: Tokens per text that the model reads; None for one without a limit.
        """
        open_length = self.steps is None and self.epochs is None
        cut = self.training_seq_length
        if cut is None and defaults.training_seq_length is not None:
            cut = min(defaults.training_seq_length, tokens or defaults.training_seq_length)
        return replace(
            self,
            steps=defaults.steps if open_length else self.steps,
            learning_rate=defaults.learning_rate if self.learning_rate is None else self.learning_rate,
            training_seq_length=cut,
        )

    def checkpoint_steps(self, steps: int | None) -> int:
        """Return the number of optimizer steps between two checkpoints.

        Args:
            steps: Number of all optimizer steps; None if it is not known yet.
        """
        if self.save_steps is not None:
            return self.save_steps
        return MOST_SAVE_STEPS if steps is None else min(MOST_SAVE_STEPS, -(-steps // 4))

    def encoder_options(self) -> dict[str, Any]:
        """Return how the encoder computes, as `SpladeTrainer` and `DenseTrainer` take it."""
        return {
            "fastest_precision": self.precision == "auto",
            "dropout": self.dropout,
            "gradient_checkpointing": self.gradient_checkpointing,
            "training_seq_length": self.training_seq_length,
        }

    def arguments(
        self,
        output_dir: str | Path,
        arguments_class: type[Arguments] | None = None,
        **others: Any,
    ) -> Arguments:
        """Return the settings as the arguments of `SpladeTrainer` or of another trainer.

        No batch holds a text twice, because a repeated positive would count as its own negative. The
        incomplete last batch of an epoch is dropped, so that every batch has the same number of negatives on
        every rank.

        Args:
            output_dir: The folder for checkpoints.
            arguments_class: The class that the trainer takes, such as `SentenceTransformerTrainingArguments`;
                None is `SparseEncoderTrainingArguments`.
            **others: Any other field of that class; a field given here replaces the one of the settings.

        Returns:
            The arguments.

        Raises:
            ValueError: If no learning rate has been chosen.
        """
        if self.learning_rate is None:
            raise ValueError("learning_rate must be a number before training starts; received None")
        # Imported here, because the command line of a recipe reads this class before it needs torch.
        import torch
        from sentence_transformers.base.training_args import BatchSamplers
        from sentence_transformers.sparse_encoder import SparseEncoderTrainingArguments

        from lexforge.common.progress import bars_are_seen

        chosen: type[Any] = arguments_class or SparseEncoderTrainingArguments
        logging_steps = self.logging_steps
        if logging_steps < 1 and self.steps is not None:  # checkpoints hold the number
            logging_steps = math.ceil(self.steps * logging_steps)
        settings: dict[str, Any] = {
            "output_dir": str(output_dir),
            "num_train_epochs": PUBLISHED_EPOCHS if self.epochs is None else self.epochs,
            "max_steps": self.steps or -1,
            "per_device_train_batch_size": self.batch_size,
            "per_device_eval_batch_size": self.batch_size,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "learning_rate": self.learning_rate,
            "weight_decay": self.weight_decay,
            "warmup_steps": self.warmup_fraction,
            "lr_scheduler_type": self.lr_scheduler_type,
            "bf16": self.precision == "bf16",
            "fp16": self.precision == "fp16",
            "optim": self.optim,
            "batch_sampler": BatchSamplers.NO_DUPLICATES,
            "dataloader_drop_last": True,
            "dataloader_pin_memory": torch.accelerator.is_available(),
            "save_steps": self.checkpoint_steps(self.steps),
            "save_total_limit": self.save_total_limit,
            "logging_steps": logging_steps if logging_steps < 1 else int(logging_steps),
            # Without this, ranks on CPUs do not find each other.
            "use_cpu": not torch.accelerator.is_available(),
            "seed": self.seed,
            "report_to": list(self.report_to) or "none",
            "disable_tqdm": not bars_are_seen(),  # a file gets lines, and no thousand pictures of a bar
            # The filter of the Trainer waits for the device several times per micro-batch, and would hide in
            # the log what `FiniteTraining` stops at.
            "logging_nan_inf_filter": False,
            # Every parameter of a SPLADE encoder gets a gradient; `AnyLossTraining` decides for others.
            "ddp_find_unused_parameters": (
                False if issubclass(chosen, SparseEncoderTrainingArguments) else None
            ),
        }
        arguments: Arguments = chosen(**(settings | others))
        if arguments.n_gpu > 1:  # without a launcher; DataParallel over all GPUs is not supported
            arguments._n_gpu = 1
        return arguments


PUBLISHED_EPOCHS = 25.0
"""Passes over the data that the notes give V26."""
MOST_SAVE_STEPS = 500
"""Steps between two checkpoints at most, where the settings do not say."""


@dataclass(frozen=True)
class Preset:
    """The settings of a run under one name, in groups; the defaults are V26.

    V22 to V26 are the numbers of the notes, on all columns; docs/losses.md, section 8, says where the public
    code behind the notes differs.

    Args:
        loss: The numbers of the loss.
        train: How a pretrained encoder is trained.
        start: What becomes of the encoder before training.
        finish: What becomes of the trained weights.
        data: Negatives and teacher where the user names none.
        learning_rate_width: Hidden size of the encoder that the learning rate was chosen for; a wider one
            takes less, in proportion. None takes the rate for every encoder.
        scratch_learning_rate: Peak learning rate for the lexical backbone.
        scratch_seq_length: Tokens per text of its training rows; None takes all that it reads. It searches
            whole texts from its first step, and learns from their beginnings in much less time.

    Source: Yang et al., "Tensor Programs V" (arXiv 2203.03466): the rate of Adam in proportion to 1 / width.
    """

    loss: LossSettings = LossSettings()
    # Training takes a few minutes on two cores with so many steps.
    train: TrainingSettings = TrainingSettings(
        steps=200, batch_size=32, gradient_accumulation_steps=1, precision="auto", mini_batch_size="auto"
    )
    start: StartSettings = StartSettings()
    finish: FinishSettings = FinishSettings()
    data: DataSettings = DataSettings()
    learning_rate_width: int | None = None
    scratch_learning_rate: float = 1e-3
    scratch_seq_length: int | None = 96

    def training_from_scratch(self) -> TrainingSettings:
        """Return how the lexical backbone is trained.

        It has everything to learn: it takes 300 steps of 64 rows, because they are cheap, at a rate of its
        own.
        """
        return replace(
            self.train,
            steps=300,
            batch_size=64,
            learning_rate=self.scratch_learning_rate,
            training_seq_length=self.scratch_seq_length,
        )

    def training_of(self, model: str | None, width: Callable[[], int | None]) -> TrainingSettings:
        """Return how a model is trained.

        Args:
            model: The name of the model; None leaves a rate open that follows from its width.
            width: Returns the hidden size of the model, or None where its files name none. It is called only
                where the rate follows from it, because it loads torch.
        """
        if model == LEXICAL:
            return self.training_from_scratch()
        if self.learning_rate_width is None:
            return self.train
        rate = None if model is None else self.learning_rate_of(width())
        return replace(self.train, learning_rate=rate)

    def learning_rate_of(self, width: int | None) -> float:
        """Return the peak learning rate for a pretrained encoder.

        Args:
            width: Its hidden size; None where its files name none.

        Returns:
            The rate of the preset, and less for an encoder that is wider than the one it was chosen for.
        """
        assert self.train.learning_rate is not None
        if self.learning_rate_width is None or width is None or width <= self.learning_rate_width:
            return self.train.learning_rate
        return self.train.learning_rate * self.learning_rate_width / width


V26 = Preset()
V25 = Preset(
    LossSettings(flops_weight=0.002, idf_alpha=2.5, special_penalty=None, stopword_penalty=5.0, phases=())
)
# V22 and V23 have no idf settings (docs/losses.md, section 8): they regularise by plain FLOPS.
NO_IDF: dict[str, Any] = {"idf_alpha": None, "special_penalty": None, "stopword_penalty": 1.0, "phases": ()}
V23 = Preset(
    LossSettings(
        infonce_weight=2.5,
        self_reconstruction_weight=1.0,
        positive_activation_weight=3.0,
        flops_weight=0.003,
        distillation_weight=1.0,
        **NO_IDF,
    )
)
V22 = Preset(
    LossSettings(
        infonce_weight=2.0,
        self_reconstruction_weight=4.0,
        positive_activation_weight=10.0,
        triplet_margin_weight=2.5,
        flops_weight=0.005,
        distillation_weight=0.0,
        **NO_IDF,
    )
)
PLAIN = Preset(
    LossSettings(
        similarity="dot",
        temperature=1.0,
        infonce_weight=1.0,
        self_reconstruction_weight=0.0,
        positive_activation_weight=0.0,
        flops_weight=3e-4,
        minimum_activation_weight=0.0,
        distillation_weight=0.0,
        ramp_fraction=1 / 3,
        **NO_IDF,
    ),
    train=replace(V26.train, learning_rate=1e-4),
    learning_rate_width=128,
)
# Fewer terms than the plain baseline at the same rank, by the tables of recipes/README.md: idf in the bias,
# hard negatives, a higher learning rate that stays high, a higher temperature with a higher weight of FLOPS,
# and at the end an average of the weights over steps and with the start.
# Minimum activation is 0 for a healthy model and holds up one that is about to collapse. BM25 teaches the
# exact words to a model that it is ahead of.
LEXFORGE = replace(
    PLAIN,
    loss=replace(
        PLAIN.loss,
        temperature=2.0,
        flops_weight=1e-3,
        minimum_activation_weight=1.0,
        distillation_weight=0.5,
        distillation_temperature=2.0,  # spreads of the teacher's scores
        kl_weight=1.0,
        mse_weight=0.0,
    ),
    train=replace(PLAIN.train, learning_rate=3e-4, lr_scheduler_type="constant_with_warmup"),
    start=StartSettings(
        scale_head=True,
        idf_bias=0.35,
        untrained_document_terms=128,
        untrained_query_terms=40,
        untrained_own_activation=5.0,
    ),
    finish=FinishSettings(start_share=0.35, prune_threshold=0.3, average_horizon=1 / 6),
    data=DataSettings(negatives="mined", negatives_per_row=3, teacher="bm25"),
)
# The lexical backbone has idf in its weights and smaller scores from the start. It starts as BM25, so that it
# takes the documents that BM25 ranks best for answers itself. A small collection soon teaches it noise. The
# lower rate, and the half of the start that is kept, hold what BM25 knows.
LEXFORGE_SCRATCH = replace(
    LEXFORGE,
    loss=replace(LEXFORGE.loss, temperature=0.15, distillation_weight=0.0),
    train=replace(LEXFORGE.train, lr_scheduler_type="cosine"),
    start=StartSettings(scale_head=True),
    finish=FinishSettings(start_share=0.5),
    data=DataSettings(negatives="bm25", teacher="bm25"),
    scratch_learning_rate=5e-4,
)
# `lexforge adapt`: the order of the teachers teaches, in units of their spread, and their best document.
# Pseudo-queries say less than judged ones, so more of the start stays.
ADAPT = replace(
    LEXFORGE,
    loss=replace(LEXFORGE.loss, distillation_weight=1.0, distillation_temperature=1.0),
    finish=replace(LEXFORGE.finish, start_share=0.6),
)
# What the teachers find best is no answer for InfoNCE here: with the lexical backbone that was not measured.
ADAPT_SCRATCH = replace(
    LEXFORGE_SCRATCH,
    loss=replace(LEXFORGE_SCRATCH.loss, infonce_weight=0.0, distillation_weight=1.0),
    scratch_seq_length=None,  # teachers score whole passages
)

# FlagEmbedding's temperature for BGE-M3. A text has no terms but its own, so no sparsity term is needed, and
# the head has no bias per term for idf or a threshold.
BGE_M3 = replace(PLAIN, loss=replace(PLAIN.loss, temperature=0.02, flops_weight=0.0))

PRESETS: dict[PresetName, Preset] = {
    "lexforge": LEXFORGE,
    "lexforge-scratch": LEXFORGE_SCRATCH,
    "plain": PLAIN,
    "bge-m3": BGE_M3,
    "v22": V22,
    "v23": V23,
    "v25": V25,
    "v26": V26,
}
"""The presets by name; docs/losses.md, section 8, shows their numbers side by side."""


def model_of_run(folder: Path) -> Path | None:
    """Return the folder of the model in a run directory; None if the folder is no such directory."""
    inside = folder / "model"
    is_run = (inside / "modules.json").is_file() and not (folder / "modules.json").is_file()
    return inside if is_run else None


def preset_of_model(model: str) -> PresetName:
    """Return the preset that suits a model, seen from its folder without loading it.

    Args:
        model: `lexical`, a folder, a run directory, or a hub name, of which no file is read.

    Returns:
        "lexforge-scratch" for `lexical`; "bge-m3" for a folder with the sparse head of BGE-M3, in the layout
        of FlagEmbedding or as an encoder with that head is saved; else "lexforge".
    """
    if model == LEXICAL:
        return "lexforge-scratch"
    folder = model_of_run(Path(model)) or Path(model)
    modules = folder / "modules.json"
    saved = modules.is_file() and "TokenWeights" in modules.read_text(encoding="utf-8")
    layout = all((folder / file).is_file() for file in (SPARSE_FILE, VECTORS_FILE))
    return "bge-m3" if saved or layout else "lexforge"


def find_preset(name: str) -> Preset:
    """Return the preset of a name.

    Raises:
        ValueError: If there is none of that name; the message lists those there are.
    """
    if name not in PRESETS:
        raise ValueError(f"--preset must be one of {', '.join(PRESETS)}; received {name!r}")
    return PRESETS[name]


# Options beside the preset.


@dataclass(frozen=True)
class EvaluationSettings:
    """When a run is evaluated, and what follows from the values.

    Args:
        eval_steps: Number of optimizer steps between two evaluations on dev; a number below 1 is a share of
            all steps, and None evaluates before and after training only.
        best_measure: Measure on dev, such as nDCG@10, by which the best checkpoint is chosen. The run then
            saves a checkpoint at each evaluation (not each `save_steps`) and ends with the best model; None
            ends with the last.
        early_stopping: Number of evaluations in a row without a better `best_measure` after which training
            stops; None trains to the end.
        initial_evaluation: Whether the model is measured before training.

    Raises:
        ValueError: If a number is out of range, or an option is given without the one that it needs.
    """

    eval_steps: float | None = None
    best_measure: str | None = None
    early_stopping: int | None = None
    initial_evaluation: bool = True

    def __post_init__(self) -> None:
        check_positive(eval_steps=self.eval_steps, early_stopping=self.early_stopping)
        if self.eval_steps is not None and self.eval_steps > 1 and self.eval_steps % 1:
            raise ValueError(f"eval_steps above 1 must be a whole number; received {self.eval_steps}")
        for name, needed in (("best_measure", "eval_steps"), ("early_stopping", "best_measure")):
            if getattr(self, name) is not None and getattr(self, needed) is None:
                raise ValueError(f"{name} needs {needed}; received {name} {getattr(self, name)!r} alone")

    @property
    def splits(self) -> list[str]:
        """The splits that a run measures: test, and during training dev."""
        return ["test"] if self.eval_steps is None else ["test", "dev"]

    def steps_between(self, steps: int) -> int | None:
        """Return the number of optimizer steps between two evaluations on dev; None for no evaluation.

        Args:
            steps: Number of all optimizer steps.
        """
        if self.eval_steps is None:
            return None
        return math.ceil(self.eval_steps * steps) if self.eval_steps < 1 else int(self.eval_steps)

    def check_measure(self, measures: Sequence[str]) -> None:
        """Refuse a best measure that the evaluation on dev does not compute.

        Args:
            measures: The names of the measures that it computes.

        Raises:
            ValueError: If `best_measure` is none of them.
        """
        if self.best_measure is not None and self.best_measure not in measures:
            raise ValueError(f"best_measure must be one of {list(measures)}; received {self.best_measure!r}")

    def arguments(self) -> dict[str, Any]:
        """Return the settings as arguments of the Trainer, for an evaluator with the name `dev`."""
        if self.eval_steps is None:
            return {}
        steps = self.eval_steps if self.eval_steps < 1 else int(self.eval_steps)
        arguments: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": steps}
        if self.best_measure is not None:
            arguments |= {
                "load_best_model_at_end": True,
                "metric_for_best_model": f"eval_dev_{self.best_measure}",
                "greater_is_better": True,
                "save_steps": steps,
                "restore_callback_states_from_checkpoint": True,  # the count of early stopping
            }
        return arguments


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How the files of tables are read, whatever their rows hold.

    Args:
        bad_rows: What becomes of rows that cannot be used (blank, not to be decoded, too many cells, wrong
            values): `fail` refuses the data with one error that counts all of them; `skip` leaves them out
            with one summary.
        delimiter: What stands between the cells of a .csv or .tsv file: one character, or `tab`; None takes
            the comma, or the tab in .tsv, and looks at the first line of a .csv file without commas.
        encoding: Encoding of text files, such as cp1252; None takes UTF-8, and guesses where it does not fit.

    Raises:
        ValueError: If the delimiter is no single character, or Python knows no such encoding.
    """

    bad_rows: BadRows = "fail"
    delimiter: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.bad_rows not in get_args(BadRows):
            raise ValueError(f"bad_rows must be one of {list(get_args(BadRows))}; received {self.bad_rows!r}")
        if self.delimiter is not None and (len(self.separator) != 1 or self.separator in '"\r\n'):
            raise ValueError(f"delimiter must be one character, or tab; received {self.delimiter!r}")
        try:
            "".encode(self.encoding or "utf-8")
        except LookupError as error:
            raise ValueError(
                f"encoding must be one that Python knows, such as cp1252; received {self.encoding!r}"
            ) from error

    @property
    def codec(self) -> str | None:
        """The one name of the encoding, which has several; UTF-8 stands for it with and without a mark."""
        name = self.encoding and codecs.lookup(self.encoding).name
        return "utf-8" if name == "utf-8-sig" else name

    @property
    def separator(self) -> str:
        """The delimiter as a character; "" where none is given."""
        return {"tab": "\t", "\\t": "\t", None: ""}.get(self.delimiter, self.delimiter or "")


@dataclass(frozen=True)
class SplitOptions(TableOptions):
    """How tables are read that are divided into splits.

    Args:
        hold_out: Share of the queries (or texts, or first sentences) of train, in (0, .5), that test and dev
            get where they are missing. Every command with the same share divides the data alike. None refuses
            data without the split that is needed.

    Raises:
        ValueError: If `hold_out` is out of range, or as for `TableOptions`.
    """

    hold_out: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hold_out is not None and not 0 < self.hold_out < 0.5:
            raise ValueError(
                "hold_out is the share of test and that of dev, and must lie between 0 and .5; received "
                f"{self.hold_out}"
            )


@dataclass(frozen=True)
class SourceOptions(SplitOptions):
    """How the data of `--data` are read.

    Args:
        query_column: Column of the queries in rows of texts; None recognises anchor, query and question.
        positive_column: Column of the positives, texts or lists; None recognises positive, positives,
            positive_passages, pos, document, passage and answer.
        negative_column: Column of the negatives, texts or lists; None recognises negative, neg and
            hard_negative, with numbers or without.
        score_column: Column of a teacher's scores: a list, the positives' first, or the margin over one
            negative; None recognises label, labels, score, scores and margin, and an empty name reads none.
        weight_column: Column of numbers >= 0, such as counts of clicks, in proportion to which rows of texts
            are drawn in training; None draws all alike.
    """

    query_column: str | None = None
    positive_column: str | None = None
    negative_column: str | None = None
    score_column: str | None = None
    weight_column: str | None = None

    @property
    def columns(self) -> dict[str, str]:
        """Return the names of columns that were given, by their role."""
        roles = {
            "anchor": self.query_column,
            "positive": self.positive_column,
            "negative": self.negative_column,
            "scores": self.score_column,
            "weight": self.weight_column,
        }
        return {role: name for role, name in roles.items() if name is not None}


@dataclass(frozen=True)
class StsOptions(SplitOptions):
    """How the scored pairs of `--data` are read.

    Args:
        sentence1_column: Column of the first sentences; None recognises sentence1 and text1.
        sentence2_column: Column of the second sentences; None recognises sentence2 and text2.
        score_column: Column of the scores; None recognises score, label, similarity and similarity_score.
    """

    sentence1_column: str | None = None
    sentence2_column: str | None = None
    score_column: str | None = None


@dataclass(frozen=True)
class MultiLabelOptions(SplitOptions):
    """How the texts of `--data` are read.

    Args:
        text_column: Column of the texts in tables; None recognises text and sentence.
        labels_column: Column of the label sets in tables: lists of names, or texts with a JSON list or with
            names that have `|`, `;` or `,` between them. None recognises labels, or else columns of 0 and 1.
    """

    text_column: str | None = None
    labels_column: str | None = None


@dataclass(frozen=True)
class CardOptions:
    """What nobody but the caller knows of a model, for its card, and where the model is uploaded.

    Args:
        text_language: Language of the texts (ISO 639-1), for the model's card.
        license: Licence of the model, as the Hugging Face hub writes it (apache-2.0, ...), for the model's
            card.
        push_to_hub: `organisation/name`: the model is uploaded there, to a private repository if there is
            none yet.
    """

    text_language: str = UNKNOWN
    license: str = UNKNOWN
    push_to_hub: str | None = None


@dataclass(frozen=True)
class RecipeSettings:
    """The settings that every recipe has; a recipe says what its own data and models are."""

    data: str = "docstrings"
    """What to train and test on."""

    model: str = LEXICAL
    """The start, or `lexical`: a small encoder built from the data, at first a bag of words."""

    max_seq_length: int | None = None
    """Tokens per text, special tokens included; longer texts are cut. None is 128 from scratch, and what a
    pretrained model was saved with, at most 256."""

    output_dir: Path = Path("runs")
    """The run directory; it must be new or empty, unless the run is resumed."""

    resume: bool = False
    """Whether to continue the run in `output_dir` from its last checkpoint."""

    plan: bool = False
    """Whether to take a few steps only, tell what the run would take, and write nothing but caches."""

    card: Annotated[CardOptions, NO_PREFIX] = CardOptions()

    evaluation: Annotated[EvaluationSettings, NO_PREFIX] = EvaluationSettings()

    train: Annotated[TrainingSettings, NO_PREFIX] = TrainingSettings()

    def follow_model(
        self, train: TrainingSettings, default_tokens: Callable[[], int | None], scratch_tokens: int = 128
    ) -> Self:
        """Return the settings with what follows from the model where the user gave nothing.

        Args:
            train: The training of this model.
            default_tokens: Returns the tokens per text of a model that is not the lexical backbone, or None
                for a model without a limit. It is called for such a model only, because it loads torch; and
                not where `--help` knows no model.
            scratch_tokens: Tokens per text of the lexical backbone.
        """
        tokens = tokens_of_model(self.max_seq_length, self.model, default_tokens, scratch_tokens)
        return replace(self, train=self.train.with_defaults(train, tokens), max_seq_length=tokens)


def tokens_of_model(
    given: int | None, model: str | None, default_tokens: Callable[[], int | None], scratch_tokens: int
) -> int | None:
    """Return the tokens per text: those that the user gave, and otherwise what follows from the model.

    The arguments are those of `RecipeSettings.follow_model`; `--help` may know no model.
    """
    if given is not None or model is None:
        return given
    return scratch_tokens if model == LEXICAL else default_tokens()


def check_negatives(negatives: NegativesName | Path, teacher_scores: Path | None) -> None:
    """Refuse a file of `--negatives` that does not exist, or that the scores of a teacher cannot follow.

    Args:
        negatives: The value of `--negatives`.
        teacher_scores: The value of `--teacher-scores`; None if it was not given.

    Raises:
        ValueError: If both name files: scores name documents by id, and the rows of a file have no ids.
        FileNotFoundError: If there is no such file of negatives.
    """
    if not isinstance(negatives, Path):
        return
    if teacher_scores is not None:
        raise ValueError(
            f"--teacher-scores names documents by id, and the rows of {negatives} have no ids; write "
            "the scores of each row into its column `label`"
        )
    if not negatives.is_file():
        raise FileNotFoundError(
            "--negatives must be given, none, mined, judged, bm25, or a file of `lexforge mine`; received "
            f"{str(negatives)!r}, and there is no such file"
        )


def check_wanted_terms(*, inference_free: bool = False, **wanted: float | None) -> None:
    """Refuse wanted numbers of active terms that no model can have.

    Args:
        inference_free: Whether the model has no query encoder.
        **wanted: Numbers by the name under which the user gave them; None wants nothing.

    Raises:
        ValueError: If a number is not finite or not above 0, or if an inference-free model is to have a
            number of `query_terms`.
    """
    check_positive(**wanted)
    if inference_free and wanted.get("query_terms") is not None:
        raise ValueError(
            "--query-terms needs a query encoder, and --inference-free has none: a query has one active term "
            f"per distinct token. Leave --query-terms out; received {wanted['query_terms']}"
        )


def engine_tokens() -> dict[IndexName, str]:
    """Read the credentials of the servers that keep vectors from the environment.

    Returns:
        Name of an index -> its token; "" where the environment holds none.
    """
    names: dict[IndexName, str] = {"milvus": "MILVUS_TOKEN", "qdrant": "QDRANT_API_KEY"}
    return {engine: os.environ.get(name, "") for engine, name in names.items()}


def server_options(uri: str | None, collection: str, index: IndexName | None) -> dict[str, str]:
    """Return address, collection and credentials of an index on a server, as the index takes them.

    Args:
        uri: The value of `--uri`.
        collection: The value of `--collection`.
        index: The value of `--index`, which says whose credentials they are; there are none for None.

    Returns:
        The options by name; none without an address.
    """
    if uri is None:
        return {}
    token = engine_tokens().get(index, "") if index else ""
    return {"uri": uri, "collection": collection, "token": token}
