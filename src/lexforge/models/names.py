"""What the name of a model stands for: a folder or a hub name, and the type of model that its files say."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from sentence_transformers.util import load_file_path

from lexforge.settings import LEXICAL, model_of_run

ModelType = Literal["dense", "sparse", "cross-encoder", "multi-vector", "unknown"]
_TYPES: dict[str, ModelType] = {
    "SentenceTransformer": "dense",
    "SparseEncoder": "sparse",
    "CrossEncoder": "cross-encoder",
    "MultiVectorEncoder": "multi-vector",
}
# Files of which every model on the hub has one: the first is that of sentence-transformers.
_MODEL_FILES = ("modules.json", "config.json")
# The organisations by which sentence-transformers completes a name without a slash, class by class.
_ORGANISATIONS = ("sentence-transformers", "sparse-encoder", "cross-encoder")


def checked_name(name_or_path: str | Path) -> str:
    """Return the name of a model as transformers and sentence-transformers take it.

    Args:
        name_or_path: A folder, a run directory, whose model is meant, or a hub name. A hub name without a
            slash is that of a model without an organisation, such as `bert-base-uncased`, or of one that
            sentence-transformers completes, such as `all-MiniLM-L6-v2`. A `Path`, and a string that cannot
            be a hub name, must exist.

    Returns:
        The path as a string, or the hub name with its organisation.

    Raises:
        FileNotFoundError: If there is no such folder, and neither the hub nor its local cache has a model of
            that name, if a run has not saved its model, or if the folder is none of a model.
        ValueError: If the argument names a file.
    """
    path = Path(name_or_path)
    if path.is_file():
        raise ValueError(f"a model is a folder, but {str(name_or_path)!r} is a file")
    if path.exists() and str(name_or_path):
        inside = model_of_run(path)
        if inside is None and (path / "env.json").is_file() and not (path / "modules.json").is_file():
            raise FileNotFoundError(
                f"{str(name_or_path)!r} is the directory of a run that has not saved its model: "
                f"{path / 'model'} is missing; the run writes it after its last step"
            )
        if inside is None and not any((path / file).is_file() for file in _MODEL_FILES):
            run = path.resolve().parent
            hint = f"; that of the run {str(run)!r} is passed by this name" if model_of_run(run) else ""
            raise FileNotFoundError(
                f"{str(name_or_path)!r} is no folder of a model: it has neither modules.json nor "
                f"config.json{hint}"
            )
        return str(inside or name_or_path)
    names = []
    if isinstance(name_or_path, str) and re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", name_or_path):
        names = [name_or_path]
        if "/" not in name_or_path:
            names += [f"{organisation}/{name_or_path}" for organisation in _ORGANISATIONS]
    reachable = True  # each question to a hub that is not costs half a minute of attempts
    for name, file in product(names, _MODEL_FILES):
        try:
            hf_hub_download(name, file, local_files_only=not reachable)
            return name
        except LocalEntryNotFoundError:
            reachable = False
        except GatedRepoError:  # a kind of RepositoryNotFoundError; it says how to get access
            raise
        except (RepositoryNotFoundError, EntryNotFoundError, HFValidationError):  # the last: no hub name
            continue
    searched = ""
    if names:
        searched = ", and neither the hub nor its local cache has a model of that name"
        if not reachable:
            searched = ", the hub cannot be reached, and its local cache has no model of that name"
    raise FileNotFoundError(
        f"there is no model at {str(name_or_path)!r}{searched}; pass the folder of a checkpoint, or a hub "
        "name such as 'FacebookAI/xlm-roberta-base'"
    )


def check_model(
    name: str,
    encoder_class: Literal["SparseEncoder", "SentenceTransformer"] | None = None,
    *,
    routes: bool = True,
) -> None:
    """Refuse a model whose files cannot be found, or of the wrong type; its weights are not loaded.

    Args:
        name: `lexical`, a folder, or a name on the hub, which must be in its local cache if there is no
            network.
        encoder_class: The class of sentence-transformers that is to load it; None takes any.
        routes: Whether the texts are queries and documents, which a model with a `Router` tells apart.

    Raises:
        FileNotFoundError: If there is no such folder, or neither the hub nor its cache has the model.
        ValueError: If the name is that of a file, if the model was saved by another class, or if it has a
            `Router` and the texts are neither queries nor documents.
    """
    if name == LEXICAL:
        return
    found = checked_name(name)
    if encoder_class is not None:
        check_saved_class(found, encoder_class)
    types = [str(module["type"]) for module in model_settings(found, "modules.json")]
    if not routes and any(each.endswith(".Router") for each in types):
        raise ValueError(
            f"{name} has a Router, which encodes queries and documents by different modules, and these texts "
            "are neither: pass a model without one"
        )


def saved_class(name: str) -> str | None:
    """Read from a model's files by which class of sentence-transformers it was saved.

    Args:
        name: A folder or a hub name.

    Returns:
        The name of the class, such as "SparseEncoder"; None for a bare checkpoint of transformers.
    """
    saved_as = model_settings(name, "config_sentence_transformers.json").get("model_type")
    if saved_as is not None:
        return str(saved_as)
    # Older versions of sentence-transformers did not write the class; its modules tell sparse from dense.
    modules = load_file_path(name, "modules.json")
    if modules is None:
        return None
    sparse = "sparse_encoder" in Path(modules).read_text(encoding="utf-8")
    return "SparseEncoder" if sparse else "SentenceTransformer"


def check_saved_class(
    name: str, encoder_class: Literal["SparseEncoder", "SentenceTransformer"]
) -> str | None:
    """Refuse a model of another class of sentence-transformers, from which no encoder is built either.

    Args:
        name: A folder or a hub name.
        encoder_class: The class of the encoder. A bare checkpoint of transformers passes too, and a dense
            encoder where a `SparseEncoder` is wanted: its transformer becomes one.

    Returns:
        The class by which it was saved; None for a bare checkpoint.

    Raises:
        ValueError: If it was saved by another class, or has no transformer; the message says what can be
            passed.
    """
    saved = saved_class(name)
    if saved is None and encoder_class == "SparseEncoder" and model_type(name) == "cross-encoder":
        saved = "CrossEncoder (a sequence classifier)"
    if saved in (None, encoder_class):
        return saved
    if saved == "SentenceTransformer":
        first = model_settings(name, "modules.json")[0]["type"]
        if first.rpartition(".")[2] == "Transformer":
            return saved
        saved = f"SentenceTransformer that begins with {first}"
    if encoder_class == "SparseEncoder":
        raise ValueError(
            f"{name} was saved as a {saved}, which is no SPLADE encoder; pass a SparseEncoder with "
            "SpladePooling, the checkpoint of a masked language model, or a SentenceTransformer that begins "
            "with a Transformer"
        )
    raise ValueError(
        f"{name} was saved as a {saved}, which is no dense encoder; pass a SentenceTransformer, or the "
        "checkpoint of a transformer, whose token vectors are averaged"
    )


def model_type(name: str) -> ModelType:
    """Read from a model's files what it is, without loading it.

    Args:
        name: A folder or a hub name.

    Returns:
        "dense" for a `SentenceTransformer`, "sparse" for a `SparseEncoder` or a bare masked language model
        (which is a SPLADE encoder here), "cross-encoder" for a `CrossEncoder` or a bare sequence classifier,
        "multi-vector" for a `MultiVectorEncoder` (ColBERT), and "unknown" for another bare transformer, or
        where there are no such files.
    """
    saved = saved_class(name)
    if saved is not None:
        return _TYPES.get(saved, "unknown")
    architectures = model_settings(name, "config.json").get("architectures") or []
    if any(architecture.endswith("ForSequenceClassification") for architecture in architectures):
        return "cross-encoder"
    return "sparse" if any(part.endswith("ForMaskedLM") for part in architectures) else "unknown"


def model_settings(name: str, file: str) -> Any:
    """Return the content of one of a model's JSON files; an empty dict where it has none."""
    path = load_file_path(name, file)
    return json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
