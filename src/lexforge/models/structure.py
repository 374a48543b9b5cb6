"""What an encoder is made of: walks over its modules and the width of its vectors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.modules import Dense, Router, Transformer
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from sentence_transformers.util import batch_to_device
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from lexforge.common.evaluation_mode import evaluation_mode
from lexforge.models.token_weights import TokenWeights

POSITION_EMBEDDINGS = ("position_embeddings", "wpe", "embed_positions")  # of BERT and its kin, GPT-2 and OPT


def module_sequences(model: SparseEncoder) -> list[list[nn.Module]]:
    """List the sequences of modules that a text can pass through.

    Args:
        model: A symmetric encoder, or an asymmetric one with a `Router`.

    Returns:
        The model's own modules in their order, then those of each route of each `Router`.
    """
    sequences = [list(model.children())]
    for module in model.modules():
        if isinstance(module, Router):
            sequences += [list(route.children()) for route in module.sub_modules.values()]
    return sequences


def has_router(model: nn.Module) -> bool:
    """Say whether queries and documents take different routes through a model.

    Args:
        model: An encoder, wrapped in DistributedDataParallel or not.

    Returns:
        Whether it has a `Router`.
    """
    return any(isinstance(module, Router) for module in model.modules())


def splade_transformers(model: SparseEncoder) -> list[Transformer]:
    """Find the transformers of a sparse encoder: one, or those of the routes of its `Router`.

    Args:
        model: A symmetric or asymmetric encoder, fused or plain.

    Returns:
        Each `Transformer` that feeds a `SpladePooling`, directly or through a `Dense`, or a `TokenWeights`,
        once.

    Raises:
        ValueError: If there is none.
    """
    found = []
    for modules in module_sequences(model):
        # The decoder of a transformer without a head is a module of its own, see `token_decoder`.
        for module, head in pairwise(each for each in modules if not isinstance(each, Dense)):
            if isinstance(module, Transformer) and isinstance(head, SpladePooling | TokenWeights):
                found.append(module)
    if not found:
        raise ValueError(
            "a SPLADE encoder has a Transformer (transformer_task='fill-mask') followed by SpladePooling; "
            f"received one with the modules {[type(module).__name__ for module in model.children()]}"
        )
    return list(dict.fromkeys(found))


def token_decoder(module: nn.Module) -> Any:
    """Return the linear layer that turns the states of a module's tokens into logits of the vocabulary.

    Args:
        module: A `Transformer` with a masked language modelling head, or the `Dense` behind one without.

    Returns:
        The output embedding of the transformer, or the layer of the `Dense`.
    """
    owner: Any = module
    return owner.linear if isinstance(module, Dense) else owner.model.get_output_embeddings()


def plain_decoder(dense: Dense) -> nn.Linear:
    """Return the layer of a `Dense` that turns the states of tokens into logits and does nothing else.

    Args:
        dense: The module between a `Transformer` without a head and `SpladePooling`.

    Returns:
        Its linear layer.

    Raises:
        ValueError: If it does more, such as an activation, which neither the fused head nor an export does.
    """
    names = {dense.module_input_name, dense.module_output_name}
    plain = type(dense.activation_function) is nn.Identity and not dense.use_residual
    if names != {"token_embeddings"} or not plain or type(dense.linear) is not nn.Linear:
        raise ValueError(
            "a Dense before SpladePooling must read and write token_embeddings by a plain nn.Linear, "
            f"without an activation and a residual; received {dense} with a {type(dense.linear).__name__}"
        )
    return dense.linear


def layers_with_adapters(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return name and module of each layer that has an adapter of peft, merged or not."""
    return [(name, module) for name, module in model.named_modules() if hasattr(module, "merged_adapters")]


def splade_decoders(model: SparseEncoder) -> list[Any]:
    """Find the decoders of a SPLADE encoder: one, or those of the routes of its `Router`.

    Args:
        model: A symmetric or asymmetric encoder, fused or plain.

    Returns:
        Each decoder that feeds a `SpladePooling`, once.

    Raises:
        ValueError: If there is none.
    """
    splade_transformers(model)  # raises an error where there is none
    found = [
        token_decoder(module)
        for modules in module_sequences(model)
        for module, follower in pairwise(modules)
        if isinstance(module, Transformer | Dense) and isinstance(follower, SpladePooling)
    ]
    if not found:
        raise ValueError(
            "the head of BGE-M3 (TokenWeights) weighs the tokens of a text and has no decoder: no term has a "
            "bias, so there is none to shift, scale, ban or trim (--preset bge-m3 needs none)"
        )
    return list(dict.fromkeys(found))


def vocabulary_size(model: SparseEncoder) -> int:
    """Return the width V of a sparse encoder's vectors, which may exceed the entries of its tokenizer.

    Args:
        model: A symmetric or asymmetric encoder, fused or plain.

    Returns:
        V.

    Raises:
        ValueError: If the model has neither a SPLADE head nor that of BGE-M3.
    """
    for module in model.modules():
        if isinstance(module, TokenWeights):
            return module.embedding_dimension
    return int(splade_decoders(model)[0].weight.shape[0])


def embedding_dimension(model: nn.Module) -> int:
    """Return the width of the embeddings that a model's forward gives, seen from one text.

    `get_embedding_dimension` of sentence-transformers does not say it: before its first use it returns the
    hidden size of a SPLADE model, and it counts a truncation that only `encode` applies.

    Args:
        model: A `SentenceTransformer` or `SparseEncoder`.

    Returns:
        D, the number of columns of `sentence_embedding`.

    Raises:
        ValueError: If the model takes no text.
    """
    preprocess = getattr(model, "preprocess", None)
    if preprocess is None:
        raise ValueError(
            "the width of embeddings is read from a sentence-transformers model that embeds texts; received "
            f"{type(model).__name__}"
        )
    device = next(model.parameters()).device
    with evaluation_mode(model), torch.no_grad():
        return int(model(batch_to_device(preprocess(["a"]), device))["sentence_embedding"].shape[-1])


def name_columns(model: BaseModel, columns: Sequence[int]) -> list[str]:
    """Return the names of columns of an encoder's sparse vectors.

    Args:
        model: The encoder.
        columns: Places from 0 to V - 1.

    Returns:
        The token for which each column stands, as the tokenizer spells it. A column without one is named by
        its number in brackets: a decoder may be wider than its tokenizer, and the columns of other heads,
        such as the `SparseAutoEncoder` of CSR models, stand for no tokens.
    """
    heads = (SpladePooling, SparseStaticEmbedding, TokenWeights)
    names: list[str | None] = [None] * len(columns)
    if any(isinstance(module, heads) for module in model.modules()):
        names = model.tokenizer.convert_ids_to_tokens(list(columns))
    return [f"[{column}]" if name is None else name for column, name in zip(columns, names, strict=True)]


def positions_of(model: Any) -> int | None:
    """Return how many tokens a model of transformers has positions for.

    Args:
        model: The model; its weights are not read.

    Returns:
        The number of tokens, special tokens included; None where the model sets no limit.
    """
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            # RoBERTa and its kin count positions from padding_idx + 1: 514 rows serve 512 tokens.
            first = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - first
    if not getattr(model.config, "position_biased_input", True):
        return None  # DeBERTa's positions are relative
    limit = getattr(model.config, "max_position_embeddings", None)
    return None if limit == -1 else limit  # XLNet's way to say that it has no limit


def set_max_seq_length(model: BaseModel, max_seq_length: int | None) -> None:
    """Let every transformer of a model cut its texts after a number of tokens.

    Args:
        model: A model of sentence-transformers, of any kind.
        max_seq_length: The number of tokens, special tokens included. None keeps what each transformer says,
            but for its last position: a tokenizer may allow more tokens.

    Raises:
        ValueError: If the number leaves no room for a word or exceeds the positions of a transformer, or if
            the model has none, such as static embeddings, which read texts of any length.
    """
    found = [module for module in model.modules() if isinstance(module, Transformer)]
    if max_seq_length is None:
        for transformer in found:
            limit, current = positions_of(transformer.model), transformer.max_seq_length
            if limit is not None and (current is None or current > limit):
                transformer.max_seq_length = limit
        return
    if not found:
        raise ValueError(f"{type(model).__name__} without a transformer takes no max_seq_length")
    for transformer in found:
        tokenizer = cast(PreTrainedTokenizerBase, transformer.tokenizer)  # a text model has one
        limit = positions_of(transformer.model)
        smallest = tokenizer.num_special_tokens_to_add() + 1
        if max_seq_length < smallest or (limit is not None and max_seq_length > limit):
            allowed = f"at least {smallest}" if limit is None else f"{smallest} to {limit}"
            raise ValueError(
                f"{type(transformer.model).__name__} allows a max_seq_length of {allowed}; "
                f"received {max_seq_length}"
            )
        transformer.max_seq_length = max_seq_length
    model.max_seq_length = max_seq_length  # a Router has it as well, for those who ask the model


def learned_positions(model: nn.Module) -> list[nn.Embedding]:
    """Return the learned embeddings of positions; none of a model with rotary ones."""
    return [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and name.rsplit(".", 1)[-1] in POSITION_EMBEDDINGS
    ]


def freeze_positions(model: nn.Module) -> list[Tensor]:
    """Take the gradient from the learned embeddings of positions.

    AdamW moves each weight by about the learning rate, however small its gradient. What a short training
    shows of one position is noise, and the sum of such moves soon outweighs the vectors of frequent words, so
    the same word weighs something else at each place. From scratch this cost up to .04 of nDCG@10 on
    docstrings (300 steps, rate 5e-4), of which most came back with one average move for all positions.

    Args:
        model: The model. Without learned positions, as with rotary ones, nothing changes.

    Returns:
        The parameters that had a gradient.
    """
    frozen = [module.weight for module in learned_positions(model) if module.weight.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(False)
    return frozen


def set_dropout(model: nn.Module, share: float) -> None:
    """Set the share of numbers that every dropout of a model leaves out in training, in place.

    What is saved with the model, its configuration, does not change.

    Args:
        model: The model.
        share: In [0, 1).
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = share
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):  # attention keeps it as a number
                setattr(module, name, share)


def checkpoint_layers(model: nn.Module) -> None:
    """Let the backward pass compute the activations of each layer of the transformers again, in place.

    Args:
        model: An encoder whose transformers know gradient checkpointing, as nearly all do.

    Raises:
        ValueError: If a transformer does not know it.

    Source: Chen et al., "Training deep nets with sublinear memory cost" (arXiv 1604.06174).
    """
    for module in model.modules():
        if isinstance(module, Transformer):
            # transformers 5.23 has another name for it, and warns of the old one.
            names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
            next(getattr(module.model, name) for name in names if hasattr(module.model, name))()


def special_token_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of [CLS], [SEP] and the like, which stand in every text and so are useless to a search.

    Args:
        tokenizer: The model's tokenizer.

    Returns:
        Sorted ids.
    """
    return sorted(tokenizer.all_special_ids)
