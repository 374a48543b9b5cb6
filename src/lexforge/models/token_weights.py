"""The sparse head of BGE-M3: each token of a text has one weight, and a term has the largest of its tokens.

A text has no other terms than its own tokens, so nothing is expanded. A linear layer makes the weights out of
the states of the tokens, and they are written into the vector term by term. FlagEmbedding trains it through a
tensor `[B, L, V]`; nothing here is larger than the vectors `[B, V]`.

Source: Chen et al. 2024, "M3-Embedding" (arXiv 2402.03216), section 3.2, lexical retrieval.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.base.modules.module import Module
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from sentence_transformers.util import load_file_path
from torch import Tensor, nn

from lexforge.models.names import saved_class
from lexforge.models.prompts import own_prompts
from lexforge.settings import SPARSE_FILE, VECTORS_FILE
from lexforge.storage.files import new_directory

logger = logging.getLogger(__name__)


class TokenWeights(Module):
    """The module behind a `Transformer` that turns the states of tokens into weights of their terms.

    The weight of a term is the largest `relu(w . h + b)` over those tokens of the text that are this term,
    where h is the state of a token. Special tokens and padding weigh nothing. The vectors are float32, or
    float64 for a float64 model.

    A second linear layer, which makes the several vectors per text of BGE-M3, is kept beside it. Neither
    training nor the sparse vectors use it, but FlagEmbedding loads both layers or none.

    Args:
        in_features: D, the width of the states.
        embedding_dimension: V, the width of the vectors: the entries of the encoder's vocabulary.
        special_token_ids: Ids of terms that weigh nothing.
        colbert_dimension: Width of the several vectors per text.
    """

    config_keys = ["in_features", "embedding_dimension", "special_token_ids", "colbert_dimension"]  # noqa: RUF012
    counts: Tensor

    def __init__(
        self,
        in_features: int,
        embedding_dimension: int,
        special_token_ids: Sequence[int],
        colbert_dimension: int,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.embedding_dimension = embedding_dimension
        self.special_token_ids = list(special_token_ids)
        self.colbert_dimension = colbert_dimension
        self.sparse_linear = nn.Linear(in_features, 1)
        self.colbert_linear = nn.Linear(in_features, colbert_dimension).requires_grad_(False)
        counts = torch.ones(embedding_dimension, dtype=torch.bool)  # [V], False for special tokens
        counts[[key for key in self.special_token_ids if key < embedding_dimension]] = False
        self.register_buffer("counts", counts, persistent=False)

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Write the vectors `[B, V]` of B texts under `sentence_embedding`.

        Args:
            features: `token_embeddings` `[B, L, D]` float, `input_ids` `[B, L]` and `attention_mask`
                `[B, L]`; or without padding, as flash attention takes them, `[1, T, D]`, `[1, T]` and
                `cu_seq_lens_q` `[B + 1]`, where each text begins and ends.
            **kwargs: Not read.

        Returns:
            `features`.

        Raises:
            IndexError: If a token lies outside the vocabulary of the head, as after new embeddings were added
                to the encoder; an accelerator raises an error of its own.
        """
        ids = features["input_ids"]  # [B, L] or [1, T]
        weights = torch.relu(self.sparse_linear(features["token_embeddings"]).squeeze(-1))
        weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
        # This lookup checks the ids: below, one of V or more would be written into the next text's vector.
        counted = self.counts[ids]
        if "cu_seq_lens_q" in features:
            lengths = features["cu_seq_lens_q"].to(ids.device).diff()  # [B]
            texts = len(lengths)
            text = torch.repeat_interleave(torch.arange(texts, device=ids.device), lengths)  # [T]
        else:
            counted &= features["attention_mask"].bool()
            texts = len(ids)
            text = torch.arange(texts, device=ids.device).unsqueeze(1).expand_as(ids).flatten()  # [B * L]
        # A token that does not count writes a 0, which is the smallest weight there is.
        weights = torch.where(counted, weights, 0).flatten()
        places = text * self.embedding_dimension + ids.flatten()
        vectors = weights.new_zeros(texts * self.embedding_dimension)
        vectors = vectors.scatter_reduce(0, places, weights, "amax")
        features["sentence_embedding"] = vectors.view(texts, self.embedding_dimension)
        return features

    def get_embedding_dimension(self) -> int:
        """Return V, the width of the vectors."""
        return self.embedding_dimension

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Save the settings and the weights, as the modules of sentence-transformers do."""
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)

    @classmethod
    def load(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> TokenWeights:
        """Load the module from its folder within a saved model."""
        module = super().load(model_name_or_path, *args, **kwargs)
        names = ("subfolder", "token", "cache_folder", "revision", "local_files_only")
        options = {name: kwargs[name] for name in names if name in kwargs}
        cls.load_torch_weights(model_name_or_path, model=module, **options)
        return module


def load_sparse_encoder(name: str, **options: Any) -> SparseEncoder:
    """Load a saved `SparseEncoder` that may hold a `TokenWeights`, without asking for trust in this package.

    Args:
        name: A folder or a hub name. A module of any other package still needs `trust_remote_code`.
        **options: Arguments of `SparseEncoder`.

    Returns:
        The encoder.

    Raises:
        ValueError: If it names a module outside of sentence-transformers and this package.
    """
    own = {f"{TokenWeights.__module__}.{TokenWeights.__qualname__}": TokenWeights}  # as modules.json says it
    model = SparseEncoder._load_with_module_classes(name, own, **options)
    for module in model.modules():
        if isinstance(module, Transformer):
            freeze_pooler(module)
    return model


def freeze_pooler(transformer: Transformer) -> None:
    """Leave the pooler of a sparse encoder out of its training: no vector is made of it.

    It would get no gradient, which several processes wait for. It is saved all the same, because
    `transformers` warns of a model that lacks it.
    """
    model: Any = transformer.model
    if getattr(model, "pooler", None) is not None:
        model.pooler.requires_grad_(False)


def has_token_weights(name: str) -> bool:
    """Say whether a model stands in FlagEmbedding's layout of BGE-M3, with both heads beside the encoder.

    Args:
        name: A folder or a hub name.
    """
    return all(load_file_path(name, file) is not None for file in (SPARSE_FILE, VECTORS_FILE))


def build_token_weights(name: str) -> tuple[list[nn.Module], dict[str, str]]:
    """Build the modules of an encoder from a model in FlagEmbedding's layout of BGE-M3.

    Args:
        name: A folder or a hub name, such as `BAAI/bge-m3`: a transformer, or a dense `SentenceTransformer`
            that begins with one, with `sparse_linear.pt` and `colbert_linear.pt` beside it.

    Returns:
        Transformer and TokenWeights, with the length and the tokenizer of the model; and its prompts.

    Raises:
        ValueError: If a file is damaged, or holds something else than a linear layer for the states of the
            encoder.
    """
    prompts: dict[str, str] = {}
    if saved_class(name) is None:
        transformer = Transformer(name)
    else:
        dense = SentenceTransformer(name, device="cpu")
        transformer, prompts = dense[0], own_prompts(dense)
    freeze_pooler(transformer)
    model: Any = transformer.model
    tokenizer: Any = transformer.tokenizer
    sparse, vectors = (
        _linear_layer(name, file, model.config.hidden_size) for file in (SPARSE_FILE, VECTORS_FILE)
    )
    if len(sparse["weight"]) != 1:
        raise ValueError(
            f"{SPARSE_FILE} of {name} must give one weight per token; received {len(sparse['weight'])}"
        )
    head = TokenWeights(
        model.config.hidden_size,
        model.config.vocab_size,
        special_token_ids=sorted(tokenizer.all_special_ids),
        colbert_dimension=len(vectors["weight"]),
    )
    head.sparse_linear.load_state_dict(sparse)
    head.colbert_linear.load_state_dict(vectors)
    return [transformer, head], prompts


def save_flag_embedding(model: SparseEncoder, folder: str | Path) -> Path:
    """Save an encoder in FlagEmbedding's layout of BGE-M3, which `build_splade` reads too.

    The folder is that of a dense `SentenceTransformer` (the state of the first token, normalized) with
    `sparse_linear.pt` and `colbert_linear.pt` beside it, as that of `BAAI/bge-m3` is. The several vectors per
    text come from the layer that was read, which training has not changed.

    Args:
        model: An encoder of a `Transformer` and `TokenWeights`.
        folder: Absent, or an empty folder.

    Returns:
        `folder`.

    Raises:
        ValueError: If the encoder has other modules.
        FileExistsError: If the folder holds anything.
    """
    head = _parts(model)[1]
    with new_directory(folder) as beside:
        dense_encoder(model).save_pretrained(str(beside), create_model_card=False)
        for file, layer in ((SPARSE_FILE, head.sparse_linear), (VECTORS_FILE, head.colbert_linear)):
            state = {key: value.detach().cpu().clone() for key, value in layer.state_dict().items()}
            torch.save(state, beside / file)
    return Path(folder)


def dense_encoder(model: SparseEncoder) -> SentenceTransformer:
    """Return the dense encoder of BGE-M3 on the transformer of a sparse one: they share their weights.

    Args:
        model: An encoder of a `Transformer` and `TokenWeights`.

    Returns:
        An encoder whose vectors are the normalized states of the first tokens, with the prompts of `model`.

    Raises:
        ValueError: If the encoder has other modules.
    """
    transformer, head = _parts(model)
    modules = [transformer, Pooling(head.in_features, pooling_mode="cls"), Normalize()]
    prompts = {kind: prompt for kind, prompt in model.prompts.items() if prompt}
    return SentenceTransformer(
        modules=modules, device=str(model.device), prompts=prompts, similarity_fn_name="cosine"
    )


def _parts(model: SparseEncoder) -> tuple[Transformer, TokenWeights]:
    match list(model.children()):
        case [Transformer() as transformer, TokenWeights() as head]:
            return transformer, head
        case modules:
            raise ValueError(
                "FlagEmbedding's layout holds a Transformer followed by TokenWeights; received the modules "
                f"{[type(module).__name__ for module in modules]}"
            )


def _linear_layer(name: str, file: str, width: int) -> dict[str, Tensor]:
    """Read the weight `[N, D]` and the bias `[N]` of a linear layer, in float32."""
    try:
        state: Any = torch.load(str(load_file_path(name, file)), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file ends in errors of many types
        raise ValueError(f"{file} of {name} is no file of tensors that torch.save wrote") from error
    shapes = {
        key: list(getattr(value, "shape", ()))
        for key, value in (state if isinstance(state, dict) else {}).items()
    }
    size = shapes.get("bias", [])
    if len(size) != 1 or shapes != {"weight": [*size, width], "bias": size}:
        raise ValueError(
            f"{file} of {name} must hold the weight [N, {width}] and the bias [N] of a linear layer; "
            f"received {shapes or type(state).__name__}"
        )
    return {key: value.float() for key, value in state.items()}
