"""Digests of models: two models with the same fingerprint give the same vectors."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import torch
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.modules import Transformer

from lexforge.common.text_identity import text_digest
from lexforge.models.structure import layers_with_adapters

# Settings of a configuration that change no vector: the folder that it was loaded from, the version of the
# library that holds it, and whether a decoder keeps its states, which depends on the library's version too.
_IRRELEVANT = {"_name_or_path", "transformers_version", "use_cache"}


def fingerprint(model: BaseModel) -> str:
    """Compute a digest of everything that decides a model's vectors.

    Args:
        model: An encoder of sentence-transformers.

    Returns:
        40 hexadecimal digits.
    """
    # SpladePooling learns its width only when it first runs; the weights decide it anyway.
    modules = re.sub(r"'embedding_dimension': \w+", "", repr(model))
    settings = {
        "class": type(model).__name__,
        "modules": modules,
        "max_seq_length": model.max_seq_length,
        "max_active_dims": getattr(model, "max_active_dims", None),
        "truncate_dim": getattr(model, "truncate_dim", None),
        "prompts": model.prompts,
        "default_prompt_name": model.default_prompt_name,
        "configurations": _configurations(model),
        "tokenizer": _tokenizer_settings(model.tokenizer),
    }
    lengths = [module.max_seq_length for module in model.modules() if isinstance(module, Transformer)]
    if len(set(lengths)) > 1:  # a Router names the longest of its routes alone
        settings["lengths"] = lengths
    if adapters := _adapters(model):
        settings["adapters"] = adapters
    digest = hashlib.blake2b(json.dumps(settings, sort_keys=True, default=str).encode(), digest_size=20)
    names: dict[Any, str] = {}  # place in memory -> the first name of its tensor: tied ones are hashed once
    unread = _unread_weights(model)
    for name, tensor in model.state_dict().items():
        if name.startswith(unread):
            continue
        place = tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {names.get(place)}".encode())
        if names.setdefault(place, name) == name:
            digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


def _unread_weights(model: BaseModel) -> tuple[str, ...]:
    """Return how the names of weights begin on which no vector depends: those of poolers beside token states.

    A checkpoint may lack them, and `transformers` then draws them at random each time that it loads it.
    """
    transformers = [module for module in model.modules() if isinstance(module, Transformer)]
    poolers = [getattr(each.model, "pooler", None) for each in transformers if _gives_token_states(each)]
    return tuple(f"{name}." for name, part in model.named_modules() if any(part is one for one in poolers))


def _gives_token_states(transformer: Transformer) -> bool:
    outputs = {each.get("method_output_name") for each in transformer.modality_config.values()}
    return outputs == {"last_hidden_state"}


def _adapters(model: BaseModel) -> list[dict[str, Any]]:
    """Return of each layer with adapters of peft which of them it uses; the weights do not tell."""
    names = ("active_adapters", "disable_adapters", "merged_adapters", "scaling")
    return [
        {"layer": name, **{each: getattr(module, each, None) for each in names}}
        for name, module in layers_with_adapters(model)
    ]


def _configurations(model: BaseModel) -> list[dict[str, Any]]:
    """Return the backbones' configurations, without what changes no vector."""
    configs: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    found = {id(config): config for config in configs if config is not None}  # static embeddings have None
    settings = [config.to_dict() if hasattr(config, "to_dict") else vars(config) for config in found.values()]
    return [_without_irrelevant(each) for each in settings]


def _without_irrelevant(settings: Any) -> Any:
    """Return settings without those of `_IRRELEVANT`, also in nested configurations."""
    if isinstance(settings, dict):
        return {key: _without_irrelevant(each) for key, each in settings.items() if key not in _IRRELEVANT}
    if isinstance(settings, list | tuple):
        return [_without_irrelevant(each) for each in settings]
    return settings


def _tokenizer_settings(tokenizer: Any) -> list[str]:
    """Return vocabulary and rules of a tokenizer, without the padding and truncation that calls change."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(backend, "to_str"):  # with what merges pieces of words, which the vocabulary does not tell
        rules = json.loads(backend.to_str())
        rules |= {"padding": None, "truncation": None}
    else:
        rules = sorted(tokenizer.get_vocab().items()) if hasattr(tokenizer, "get_vocab") else repr(tokenizer)
    sides = [str(getattr(tokenizer, name, None)) for name in ("padding_side", "truncation_side")]
    return [type(tokenizer).__name__, *sides, text_digest([json.dumps(rules, sort_keys=True)])]
