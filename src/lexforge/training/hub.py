"""The upload of a trained model to the hub, by the arguments of the Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from transformers import Trainer


def hub_arguments(name: str | None) -> dict[str, Any]:
    """Return the arguments of the Trainer that prepare an upload.

    The Trainer makes the repository when it is built, so missing credentials or a wrong name end the run
    before training. It uploads nothing itself: it would upload the run directory, in which a model's files
    replace those of the run.

    Args:
        name: `organisation/name`; None for no upload.

    Returns:
        Fields of the training arguments, with which a new repository is private; none for no upload.
    """
    if name is None:
        return {}
    return {"push_to_hub": True, "hub_model_id": name, "hub_private_repo": True, "hub_strategy": "end"}


def push_model(trainer: Trainer, folder: str | Path) -> str:
    """Upload a saved model with its card to the repository that the Trainer's arguments name.

    Args:
        trainer: Its arguments have `push_to_hub`; it has made the repository.
        folder: The folder of the model. Everything in it is uploaded.

    Returns:
        The address of the upload.
    """
    arguments = trainer.args
    assert trainer.hub_model_id is not None  # the Trainer has named it
    upload = HfApi().upload_folder(
        repo_id=trainer.hub_model_id,
        folder_path=str(folder),
        commit_message="End of training",
        token=arguments.hub_token,
        revision=arguments.hub_revision,
    )
    return str(upload)
