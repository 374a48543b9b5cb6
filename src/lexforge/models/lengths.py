"""The length of the texts of a saved model, and its width, read before its weights are loaded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

import torch
from transformers import AutoConfig, AutoModel

from lexforge.models.names import checked_name, model_settings
from lexforge.models.structure import positions_of

LONGEST_TOKENS = 256
"""Tokens per text of a pretrained model at most, unless the user gives more."""
SHORT_TOKENS = 128
"""Tokens per text of a pretrained model whose files name no length."""
UNLIMITED = 10**6  # tokenizers without a limit name 1e30 tokens


def smallest_limit(limits: Iterable[float | None]) -> int | None:
    """Return the smallest of some numbers of tokens.

    Args:
        limits: What a model, its tokenizer or its files name; no limit is None, infinity, or `UNLIMITED` and
            more.

    Returns:
        The number; None where none of them is a limit.
    """
    return min((int(each) for each in limits if each is not None and each < UNLIMITED), default=None)


def own_length(name: str) -> int | None:
    """Read how many tokens of a text a model takes: what it was saved with, within its positions.

    Args:
        name: A folder or a hub name: a checkpoint of transformers, or a model of sentence-transformers.

    Returns:
        The number of tokens, special tokens included, for documents where a `Router` divides them from
        queries; None where the files name none, such as those of a model without position embeddings.

    Raises:
        FileNotFoundError: If there is no such folder, and no such model on the hub.
    """
    name, folder, place = _transformer(name)
    # Since version 5 sentence-transformers keeps the length with the tokenizer.
    limits = [
        model_settings(name, f"{place}sentence_bert_config.json").get("max_seq_length"),
        model_settings(name, f"{place}tokenizer_config.json").get("model_max_length"),
    ]
    if model_settings(name, f"{place}config.json"):
        with torch.device("meta"):  # the modules without their weights
            model = AutoModel.from_config(AutoConfig.from_pretrained(name, subfolder=folder))
        limits.append(positions_of(model))
    return smallest_limit(limits)


def default_tokens(name: str) -> int | None:
    """Return the tokens per text of a pretrained model where the user gives no number.

    Args:
        name: A folder or a hub name, as for `own_length`.

    Returns:
        What the model was saved with, because it knows no longer texts, and at most `LONGEST_TOKENS`; None
        for static embeddings, which read texts of any length.

    Raises:
        FileNotFoundError: If there is no such folder, and no such model on the hub.
    """
    modules = model_settings(checked_name(name), "modules.json")
    if modules and str(modules[0]["type"]).endswith("StaticEmbedding"):
        return None
    return min(own_length(name) or SHORT_TOKENS, LONGEST_TOKENS)


def own_width(name: str) -> int | None:
    """Read the hidden size of a model.

    Args:
        name: A folder or a hub name: a checkpoint of transformers, or a model of sentence-transformers.

    Returns:
        The hidden size, of the encoder of documents where a model has a `Router`; None where the files name
        none.

    Raises:
        FileNotFoundError: If there is no such folder, and no such model on the hub.
    """
    name, folder, place = _transformer(name)
    if not model_settings(name, f"{place}config.json"):
        return None
    width: int | None = getattr(AutoConfig.from_pretrained(name, subfolder=folder), "hidden_size", None)
    return width


def _transformer(name: str) -> tuple[str, str, str]:
    """The name of a model, the folder of its transformer, and that folder as the beginning of a path."""
    name = checked_name(name)
    modules = model_settings(name, "modules.json") or [{"path": ""}]
    folder = modules[0]["path"]  # the transformer is the first module
    router = model_settings(name, str(PurePosixPath(folder, "router_config.json")))
    if route := router.get("structure", {}).get("document"):  # queries may have no transformer
        folder = str(PurePosixPath(folder, route[0]))
    return name, folder, f"{folder}/" if folder else ""
