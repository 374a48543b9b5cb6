"""The modules of a new SPLADE encoder, from a checkpoint with or without a head of masked language modelling.

Without it, as in decoder LMs and bare encoders, the states of the tokens go through a decoder of their
own, a stock `Dense` of sentence-transformers, into `SpladePooling`. So every module is stock, the saved
encoder loads with plain sentence-transformers, and the decoder has the bias that the restriction of the
vocabulary needs.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from lexforge.models.prompts import own_prompts
from lexforge.models.token_weights import freeze_pooler

logger = logging.getLogger(__name__)

# Decoder LMs whose attention looks both ways where `config.is_causal` is False; a test checks each one.
DECODER_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def modules_of_checkpoint(name: str) -> list[nn.Module]:
    """Build the modules of an encoder from a masked language model, a decoder LM, or a bare encoder.

    A head of which weights are missing is refused, or replaced where there is none at all: transformers would
    fill it with random numbers and only log it.

    Args:
        name: A folder or a hub name of a checkpoint of transformers.

    Returns:
        Transformer and SpladePooling, and between them a Dense where the model has no head.

    Raises:
        ValueError: If the model is of another family, weights are missing, the tokenizer of a decoder LM has
            no token to pad with, or the embeddings of a bare encoder have another width than its states.
    """
    config = AutoConfig.from_pretrained(name)
    if config.model_type in DECODER_FAMILIES:
        return _decoder_lm(name)
    if config.model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        families = ", ".join(DECODER_FAMILIES)
        raise ValueError(
            f"{name} is a model of type {config.model_type!r} ({type(config).__name__}), which does not "
            f"become a SPLADE encoder; pass a masked language model, a decoder LM ({families}), or an "
            "encoder such as a BertModel"
        )
    # Without the weights, which are loaded below.
    model, loading = AutoModelForMaskedLM.from_pretrained(name, output_loading_info=True, device_map="meta")
    missing = sorted(loading["missing_keys"])
    if not missing:
        return [Transformer(name, transformer_task="fill-mask"), SpladePooling("max")]
    what = f"{type(model).__name__} misses {len(missing)} of its weights ({', '.join(missing[:4])})"
    if any(architecture.endswith("ForMaskedLM") for architecture in config.architectures or ()):
        raise ValueError(
            f"{name} is not a complete masked language model: {what}. SPLADE needs the head trained with the "
            "encoder"
        )
    _, loading = AutoModel.from_pretrained(name, output_loading_info=True, device_map="meta")
    _refuse_missing(name, [key for key in loading["missing_keys"] if not key.startswith("pooler.")])
    return _decoded_by_embeddings(
        Transformer(name), f"{name} is not a complete masked language model: {what}"
    )


def modules_of_dense(name: str) -> tuple[list[nn.Module], dict[str, str]]:
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


def _decoder_lm(name: str) -> list[nn.Module]:
    """Build the modules of an encoder from a decoder LM that looks both ways.

    The causal mask is taken away (CSPLADE's bidirectional variant): a token of a text sees those that
    follow it. `config.is_causal` is saved as False, so whoever loads the model gets the same attention. The
    logits of all tokens are pooled. The output embedding of the language model becomes the decoder, a copy
    where it is tied to the input embedding. Its logits are made for next words: scale them with
    `scale_head`.

    An adapter (LoRA) is saved beside the name of its base and without a configuration, so its base must be a
    saved encoder: save this one, load it, and add the adapter to that.

    Source: Xu et al. 2025, "CSPLADE" (arXiv 2504.10816), the variant with bidirectional attention.
    """
    loaded: Any = AutoModelForCausalLM.from_pretrained(name, output_loading_info=True)
    language_model, loading = loaded
    _refuse_missing(name, loading["missing_keys"])
    weight: Tensor = language_model.get_output_embeddings().weight.detach().clone()  # [V, D]
    del loaded, language_model  # gone before the encoder is loaded
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
