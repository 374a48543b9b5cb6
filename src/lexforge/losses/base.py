"""What every plug-in loss shares: it encodes the columns, computes a loss of the embeddings, has a state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from sentence_transformers.base.model import BaseModel
from torch import Tensor, nn

from lexforge.common.ranks import first_gathered_row, rows_of_all_ranks
from lexforge.common.similarity import Similarity, agreed_similarity
from lexforge.losses.gradient_cache import (
    Features,
    MiniBatchSize,
    can_be_cut,
    embed_in_mini_batches,
)
from lexforge.losses.memory import RowsThatFit
from lexforge.losses.precision import at_least_float32
from lexforge.models.momentum import MomentumEncoder

# The collator puts these beside the tokens of a column, for the loss alone; the encoder never sees them.
TEACHER_KEY = "teacher_embedding"  # [B, D] float, of the teacher
IDENTITY_KEY = "text_identity"  # [B] int64, see lexforge.common.text_identity
RELEVANT_KEY = "relevant"  # [B, M] int64, beside the anchor: identities of the documents relevant to it
LOSS_KEYS = frozenset({TEACHER_KEY, IDENTITY_KEY, RELEVANT_KEY})
# AdaptiveLayerLoss keeps the states of all layers under this key, beside the tokens, for its next call.
LAYERS_KEY = "all_layer_embeddings"


class EmbeddingLoss(nn.Module):
    """A loss on the embeddings of the text columns, as the trainers of sentence-transformers call it.

    A subclass implements `compute_loss(embeddings, features, labels)`, which runs outside autocast on
    embeddings of float32 at least, and overrides `embed` if not every column is encoded by the model. The
    model is kept as `self.model`, the one name the Trainer looks for when it swaps in the wrapped
    (DistributedDataParallel, compiled) model. Other parameters, buffers and a `MomentumEncoder` are the
    state of the loss; see `loss_tensors`.

    AdaptiveLayerLoss, MatryoshkaLoss and Matryoshka2dLoss of sentence-transformers may wrap a subclass that
    returns a tensor; they compute it several times for a batch.

    Args:
        model: The `SparseEncoder` or `SentenceTransformer` to train.
        mini_batch_size: Rows that are encoded at once; a larger batch is encoded twice, piece by piece, in
            the memory of one piece (docs/losses.md, section 16). "auto" is as many rows as fit into the free
            memory (`RowsThatFit`), and None the whole batch.
        gather_across_devices: Whether the rows of a batch are compared with those of all ranks, with
            gradient, so that R ranks of B rows train like one rank of R * B rows. Every rank needs the same
            number of rows (`dataloader_drop_last=True`).

    Raises:
        ValueError: If the mini-batch size is no positive integer, and neither "auto" nor None.

    Attributes:
        similarity: What the loss trains by, which must still be the model's when a batch comes; None for a
            loss that compares no texts.
        card_settings: Names of the attributes that a model card shows, beside `mini_batch_size`.
        once_per_batch: Whether the loss must be computed once for a batch, because it compares with vectors
            of its own that are kept between batches, or returns named parts.
        metrics: Detached 0-dim values of the last call that are logged and not trained on.
    """

    similarity: Similarity | None = None
    once_per_batch = False
    card_settings: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        model: nn.Module,
        mini_batch_size: MiniBatchSize = None,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__()
        number = isinstance(mini_batch_size, int) and mini_batch_size > 0
        if not number and mini_batch_size not in ("auto", None):
            raise ValueError(
                f"mini_batch_size must be a positive integer, 'auto' or None; received {mini_batch_size!r}"
            )
        self.model = model
        self.mini_batch_size = mini_batch_size
        self.gather_across_devices = gather_across_devices
        self.metrics: dict[str, Tensor] = {}
        self.rows_that_fit = RowsThatFit()

    def forward(
        self, sentence_features: Iterable[Features], labels: Tensor | None = None
    ) -> Tensor | dict[str, Tensor]:
        """Encode each column and compute the loss.

        Args:
            sentence_features: One dict per text column, as the data collator makes them: `input_ids [B, L]`,
                `attention_mask [B, L]` and whatever else the model or the loss reads.
            labels: `[B]` or `[B, C]`, or None.

        Returns:
            A 0-dim tensor, or a dict of named, already weighted 0-dim parts that sum to the loss.

        Raises:
            TypeError: If the features are those of one column without a list, or the labels are no tensor.
            ValueError: If the loss cannot be computed several times for a batch, and the loss that wraps it
                does so, or if the model has got another similarity since the loss was made.
        """
        if isinstance(sentence_features, Mapping):
            raise TypeError(
                f"{type(self).__name__} takes a list with one dict per text column; received one dict"
            )
        features = list(sentence_features)
        if (self.once_per_batch or self.mini_batch_size is not None) and _is_repeated(self.model):
            raise ValueError(
                f"{type(self).__name__} cannot stand within AdaptiveLayerLoss, MatryoshkaLoss or "
                "Matryoshka2dLoss, which compute it several times for a batch: a loss can that returns one "
                "tensor, keeps no queue and has mini_batch_size=None, such as InfoNCELoss, CoSENTLoss and "
                f"HCLLoss; received mini_batch_size={self.mini_batch_size!r}"
            )
        inputs = [
            {key: value for key, value in column.items() if key not in LOSS_KEYS} for column in features
        ]
        embeddings = self.embed(inputs)
        for column, encoded in zip(features, inputs, strict=True):
            if LAYERS_KEY in encoded:
                column[LAYERS_KEY] = encoded[LAYERS_KEY]
        return self._compute(embeddings, features, labels)

    def compute_loss_from_embeddings(
        self, embeddings: list[Tensor], labels: Tensor | None = None
    ) -> Tensor | dict[str, Tensor]:
        """Compute the loss where another loss (`SpladeLoss`, `CachedSpladeLoss`) has encoded the columns.

        Args:
            embeddings: One `[B, D]` float tensor per column.
            labels: `[B]` or `[B, C]`, or None.

        Returns:
            As `forward`.

        Raises:
            ValueError: If the loss needs more of a column than its embedding.
        """
        return self._compute(embeddings, None, labels)

    def embed(self, inputs: list[Features]) -> list[Tensor]:
        """Encode the columns by the model, in mini-batches if so told.

        Args:
            inputs: One dict per text column, with what the model reads.

        Returns:
            One `[B, D]` float tensor per column.
        """
        size = self.mini_batch_size
        if size == "auto":
            measured = inputs and torch.is_grad_enabled() and self.model.training and can_be_cut(inputs)
            size = self.rows_that_fit(self.model, inputs) if measured else None
        return embed_in_mini_batches(self.model, inputs, size)

    def compute_loss(
        self, embeddings: list[Tensor], features: list[Features] | None, labels: Tensor | None
    ) -> Tensor | dict[str, Tensor]:
        """Compute the loss of the embeddings; see `forward`.

        Args:
            embeddings: One `[B, D]` float tensor per column.
            features: One dict per column, or None where only embeddings are at hand.
            labels: `[B]` or `[B, C]`, or None.

        Returns:
            As `forward`.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement compute_loss")

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings, for the model card."""
        return {name: getattr(self, name) for name in (*self.card_settings, "mini_batch_size")}

    def _compared(self, rows: Tensor) -> Tensor:
        """The rows `[B, ...]` of all ranks if they are gathered, else this rank's."""
        return rows_of_all_ranks(rows) if self.gather_across_devices else rows

    def _own_places(self, rows: Tensor) -> Tensor:
        """The places `[B]` of this rank's rows among those that `_compared` returns."""
        first = first_gathered_row(len(rows)) if self.gather_across_devices else 0
        return torch.arange(first, first + len(rows), device=rows.device)

    def _compute(
        self, embeddings: list[Tensor], features: list[Features] | None, labels: Tensor | None
    ) -> Tensor | dict[str, Tensor]:
        if not embeddings:
            raise ValueError(f"{type(self).__name__} needs at least one text column; received none")
        if labels is not None and not isinstance(labels, Tensor):
            raise TypeError(
                f"{type(self).__name__} takes labels as a tensor, as the data collators make it: "
                f"torch.tensor(labels); received {type(labels).__name__}"
            )
        # Made after this one, a loss such as SparseCoSENTLoss gives the model its own similarity.
        if self.similarity is not None:
            agreed_similarity(self.model, self.similarity, loss=type(self).__name__)
        with torch.autocast(embeddings[0].device.type, enabled=False):
            return self.compute_loss([at_least_float32(rows) for rows in embeddings], features, labels)


def losses_of(loss: Any) -> list[Any]:
    """List the losses of a trainer.

    Args:
        loss: What a trainer takes: a loss, losses by the name of their data set, or None.
    """
    return list(loss.values()) if isinstance(loss, Mapping) else [loss]


def embedding_losses(loss: nn.Module) -> list[EmbeddingLoss]:
    """Return the losses of this package in a loss: itself, or those that it wraps at any depth.

    Args:
        loss: Any loss of sentence-transformers or ours.

    Returns:
        Each loss once.
    """
    return [module for _, module in _outside_models(loss) if isinstance(module, EmbeddingLoss)]


def loss_models(loss: nn.Module) -> list[BaseModel]:
    """Return the models that a loss, and those that it wraps at any depth, were built with.

    Args:
        loss: Any loss of sentence-transformers or ours.

    Returns:
        The model of each; a guide is none of them.
    """
    models = [getattr(module, "model", None) for _, module in _outside_models(loss)]
    return [model for model in models if isinstance(model, BaseModel)]


def loss_tensors(loss: nn.Module) -> dict[str, Tensor]:
    """Collect what a loss carries beside the model it trains: parameters, buffers, momentum encoders.

    A momentum encoder first follows the model, so that no optimizer step is pending.

    Args:
        loss: Any loss of sentence-transformers, also one that wraps another. A child named `model`, at any
            depth, and any other encoder of sentence-transformers, such as a guide, is no part of the state.

    Returns:
        Name -> the tensor itself, not a copy; empty for a loss without state.
    """
    outside = _names_outside_models(loss)
    tensors = {
        name: tensor
        for name, tensor in loss.state_dict(keep_vars=True).items()
        if isinstance(tensor, Tensor) and name.rpartition(".")[0] in outside
    }
    for name, owner, encoder in _momentum_encoders(loss):
        encoder.follow(owner.get_submodule("model"))
        tensors |= {f"{name}.{key}": tensor for key, tensor in encoder.tensors().items()}
    return tensors


def load_loss_tensors(loss: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Write saved tensors back into a loss whose model already has the parameters of the same moment.

    Args:
        loss: As in `loss_tensors`.
        saved: What `loss_tensors` gave.

    Raises:
        ValueError: If a name is missing or unknown, or a shape or dtype differs. Nothing is written then.
    """
    # Each moving average follows the model here, so that what is written below stands until the model moves.
    current = loss_tensors(loss)
    problems = [f"{name} does not belong to this loss" for name in sorted(saved.keys() - current.keys())]
    problems += [f"{name} is missing" for name in sorted(current.keys() - saved.keys())]
    for name in sorted(current.keys() & saved.keys()):
        expected, found = ((tuple(tensors[name].shape), tensors[name].dtype) for tensors in (current, saved))
        if expected != found:
            problems.append(f"{name} is {found[1]} {found[0]}, not {expected[1]} {expected[0]}")
    if problems:
        raise ValueError(
            f"the saved state does not fit this {type(loss).__name__}: "
            + "; ".join(problems[:8])
            + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        )
    with torch.no_grad():
        for name, tensor in current.items():
            tensor.copy_(saved[name])


def loss_parameters(loss: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters of a loss beside those of the model it trains.

    Args:
        loss: As in `loss_tensors`.

    Returns:
        The parameters, in the order of `named_parameters`.
    """
    outside = _names_outside_models(loss)
    return [
        parameter
        for name, parameter in loss.named_parameters()
        if parameter.requires_grad and name.rpartition(".")[0] in outside
    ]


def _outside_models(loss: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Name and module of a loss and of all that it holds, except encoders and what they hold."""
    yield prefix, loss
    by_data_set = isinstance(loss, nn.ModuleDict)  # there "model" may be the name of a data set
    for name, child in loss.named_children():
        if (by_data_set or name != "model") and not isinstance(child, BaseModel):
            yield from _outside_models(child, f"{prefix}.{name}" if prefix else name)


def _names_outside_models(loss: nn.Module) -> set[str]:
    return {name for name, _ in _outside_models(loss)}


def _momentum_encoders(loss: nn.Module) -> Iterator[tuple[str, nn.Module, MomentumEncoder]]:
    """Name, owner and encoder of each momentum encoder that a loss or a loss within it holds."""
    for prefix, module in _outside_models(loss):
        for attribute, value in vars(module).items():
            if isinstance(value, MomentumEncoder):
                yield ".".join(filter(None, (prefix, attribute))), module, value


def _is_repeated(model: nn.Module) -> bool:
    """Whether a wrapping loss has put its decorator in place of the forward of the model, wrapped or not."""
    held: Any = model
    while held is not None:
        # sentence-transformers has two classes of this name, for AdaptiveLayerLoss and for MatryoshkaLoss.
        if type(vars(held).get("forward")).__name__ == "ForwardDecorator":
            return True
        held = (
            None if isinstance(held, BaseModel) else getattr(held, "module", getattr(held, "_orig_mod", None))
        )
    return False
