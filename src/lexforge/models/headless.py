"""SPLADE encoders from models without a masked language modelling head: decoder LMs and bare encoders.

The states of the tokens go through a decoder of their own, a stock `Dense` of sentence-transformers, into
`SpladePooling`. So every module is stock, the saved encoder loads with plain sentence-transformers, and the
decoder has the bias that the restriction of the vocabulary needs.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM

from lexforge.models.prompts import own_prompts
from lexforge.models.token_weights import freeze_pooler

logger = logging.getLogger(__name__)

# Decoder LMs whose attention looks both ways where `config.is_causal` is False; a test checks each one.
DECODER_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def build_decoder_lm(name: str) -> list[nn.Module]:
    """Build the modules of an encoder from a decoder LM that looks both ways.

    The causal mask is taken away (CSPLADE's bidirectional variant): a token of a text sees those that
    follow it. `config.is_causal` is saved as False, so whoever loads the model gets the same attention. The
    logits of all tokens are pooled. The output embedding of the language model becomes the decoder, a copy
    where it is tied to the input embedding. Its logits are made for next words: scale them with
    `scale_head`.

    An adapter (LoRA) is saved beside the name of its base and without a configuration, so its base must be a
    saved encoder: save this one, load it, and add the adapter to that.

    Args:
        name: A folder or a hub name of a model of `DECODER_FAMILIES`.

    Returns:
        Transformer, Dense and SpladePooling.

    Raises:
        ValueError: If weights of the language model are missing, or its tokenizer has no token to pad with.

    Source: Xu et al. 2025, "CSPLADE" (arXiv 2504.10816), the variant with bidirectional attention.
    """
    weight = _output_embedding(name)
    transformer = Transformer(name)
    transformer.model.config.is_causal = False
    transformer.model.config.use_cache = False  # nothing is generated
    tokenizer: Any = transformer.tokenizer
    if tokenizer.pad_token is None:  # decoder LMs are trained without padding; the mask hides these tokens
        if tokenizer.eos_token is None:
            raise ValueError(
                f"the tokenizer of {name} has neither a token for padding nor one for the end of a text"
            )
        tokenizer.pad_token = tokenizer.eos_token
        transformer.model.config.pad_token_id = tokenizer.pad_token_id
    return [transformer, _decoder(weight), SpladePooling("max")]


def build_bare_encoder(name: str, missing: str) -> list[nn.Module]:
    """Build the modules of an encoder from a bidirectional transformer that was saved without a head.

    The matrix of the input embeddings becomes the decoder, with a bias of zeros.

    Args:
        name: A folder or a hub name of a checkpoint, such as that of a `BertModel`.
        missing: What a masked language model would need and the checkpoint lacks, for the message.

    Returns:
        Transformer, Dense and SpladePooling.

    Raises:
        ValueError: If weights of the encoder itself are missing too, or if the embeddings have another width
            than the states, as those of ELECTRA can.
    """
    _, loading = AutoModel.from_pretrained(name, output_loading_info=True, device_map="meta")
    _refuse_missing(name, [key for key in loading["missing_keys"] if not key.startswith("pooler.")])
    return _decoded_by_embeddings(
        Transformer(name), f"{name} is not a complete masked language model: {missing}"
    )


def build_from_dense(name: str) -> tuple[list[nn.Module], dict[str, str]]:
    """Build the modules of an encoder from the transformer of a dense `SentenceTransformer`.

    The matrix of its input embeddings becomes the decoder, with a bias of zeros. Pooling and what follows it
    are left out.

    Args:
        name: A folder or a hub name of a saved model whose first module is a `Transformer`.

    Returns:
        Transformer, Dense and SpladePooling, with the length and the tokenizer of the model; and its prompts.

    Raises:
        ValueError: If the embeddings have another width than the states.
    """
    dense = SentenceTransformer(name, device="cpu")
    transformer, *others = dense.children()
    assert isinstance(transformer, Transformer)  # `check_saved_class` has looked
    left_out = ", ".join(type(module).__name__ for module in others)
    logger.info("%s is a dense encoder: its transformer is taken, without %s", name, left_out)
    return _decoded_by_embeddings(transformer, f"{name} is a dense encoder"), own_prompts(dense)


def _decoded_by_embeddings(transformer: Transformer, what: str) -> list[nn.Module]:
    """The transformer, with its pooler at rest, and a head made of its input embeddings."""
    freeze_pooler(transformer)
    model: Any = transformer.model
    embeddings = model.get_input_embeddings().weight.detach().clone()  # [V, D]
    width = transformer.get_embedding_dimension()
    if embeddings.shape[1] != width:
        raise ValueError(
            f"{what}. Its embeddings of width {embeddings.shape[1]} cannot take the place of a head for "
            f"states of width {width}"
        )
    return [transformer, _decoder(embeddings), SpladePooling("max")]


def _output_embedding(name: str) -> Tensor:
    """Return the matrix `[V, D]` of a language model, which is gone before its encoder is loaded."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(name, output_loading_info=True)
    model, loading = loaded
    _refuse_missing(name, loading["missing_keys"])
    weight: Tensor = model.get_output_embeddings().weight.detach().clone()
    return weight


def _decoder(weight: Tensor) -> Dense:
    """Return a `Dense` of the weight `[V, D]` and a bias of zeros, from states of tokens to logits."""
    terms, width = weight.shape
    return Dense(
        in_features=width,
        out_features=terms,
        activation_function=nn.Identity(),
        init_weight=weight,
        init_bias=torch.zeros(terms, dtype=weight.dtype),
        module_input_name="token_embeddings",
    )


def _refuse_missing(name: str, missing: Any) -> None:
    """Refuse a checkpoint that lacks weights: transformers would fill them with random numbers."""
    keys = sorted(missing)
    if keys:
        raise ValueError(
            f"{name} is not a complete model: it misses {len(keys)} weights ({', '.join(keys[:4])})"
        )
