"""The upload to the hub, with a local folder in the place of the service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset

from lexforge.losses import NeuralSparseLoss
from lexforge.training import SpladeTrainer, TrainingSettings
from lexforge.training.recipe import hub_arguments


def trainer(model: Any, output: Path, **arguments: Any) -> SpladeTrainer:
    settings = TrainingSettings(steps=1, batch_size=2, gradient_accumulation_steps=1, precision="fp32")
    rows = {"anchor": ["sort", "open"], "positive": ["sort the list", "open the file"]}
    loss = NeuralSparseLoss(model, self_reconstruction_weight=0.0, distillation_weight=0.0)
    return SpladeTrainer(
        model,
        loss,
        args=settings.arguments(output, **arguments),
        train_dataset=Dataset.from_dict(rows),
    )


def test_the_saved_model_is_uploaded_and_nothing_of_the_run(hub: Path, tmp_path: Path, tiny_splade) -> None:
    """The Trainer would upload the run directory, with its settings and whatever else lies there."""
    made = trainer(tiny_splade, tmp_path / "run", **hub_arguments("organisation/name"))
    assert (hub / "organisation" / "name").is_dir()  # before training: a wrong name costs no run
    assert (hub / "organisation" / "name.visibility").read_text() == "private=True"
    made.train()
    assert not any((hub / "organisation" / "name").iterdir())
    tiny_splade.save_pretrained(str(tmp_path / "run" / "model"), create_model_card=False)
    (tmp_path / "run" / "model" / "README.md").write_text("the card")
    folder = str(tmp_path / "run" / "model")
    address = tiny_splade.push_to_hub(
        "organisation/name", private=True, exist_ok=True, local_model_path=folder
    )
    assert address == "https://hub/organisation/name"
    uploaded = {path.name for path in (hub / "organisation" / "name").iterdir()}
    assert {"modules.json", "model.safetensors", "README.md"} <= uploaded
    assert not any(name.startswith("checkpoint") for name in uploaded)


def test_without_a_name_nothing_is_uploaded(hub: Path, tmp_path: Path, tiny_splade) -> None:
    """An upload that nobody asked for publishes a model."""
    trainer(tiny_splade, tmp_path / "run", **hub_arguments(None))
    assert not hub.exists()
